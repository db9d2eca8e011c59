"""llama.cpp's server, started by a test: llama_serve.py MODEL PORT [SETTING=NUMBER...]

Runs on the package that .ci/servers installs for it. One thread, sampling by a fixed seed, and no memory of earlier
prompts unless `cache_prompt=1` says so: the same request gets the same answer.
"""

import signal
import sys

import xllamacpp

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.model_alias = {"words"}
params.hostnames = ["127.0.0.1"]
params.port = int(sys.argv[2])
params.n_ctx = 8192
params.n_parallel = 1
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.warmup = False
params.use_jinja = True
params.sampling.seed = 42
params.sampling.temp = 1.0
params.cache_prompt = False
for setting in sys.argv[3:]:
    name, _, number = setting.partition("=")
    setattr(params, name, type(getattr(params, name))(int(number)))
server = xllamacpp.Server(params)
signal.sigwait({signal.SIGTERM, signal.SIGINT})
