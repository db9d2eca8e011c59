from tests.fakes.scripted import ok_json
from .house import settings

def test_it(gateway, upstream):
    upstream.play(ok_json())
    g = gateway(settings(upstream.url))
    a = g.complete()
    print(a)
    print(g.calls())
    print(g.line(id=a.id))
    print(g.metric("gateway_requests_total"))
    print(g.admin("usage").json, g.get("/v1/key").json)
