// A real identity provider (npm oidc-provider) with its own pages for people: any name may sign in, without a password.
//
//   node oidc_provider.mjs FOLDER PORT REDIRECT_URI...
//
// FOLDER has node_modules. The groups of a person are what stands before the dot in her name: ops.ann is in "ops".

import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, port, ...redirects] = process.argv.slice(2);
const entry = createRequire(join(folder, "here.js")).resolve("oidc-provider");
const { Provider } = await import(pathToFileURL(entry).href);

const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [{ client_id: "gateway", client_secret: "client-secret", redirect_uris: redirects }],
  claims: { openid: ["sub"], email: ["email", "email_verified"], groups: ["groups"] },
  scopes: ["openid", "email", "groups"],
  cookies: { keys: ["for-tests-alone"] },
  findAccount: (_, id) => ({
    accountId: id,
    claims: () => ({ sub: id, email: `${id}@example.org`, email_verified: true, groups: [id.split(".")[0]] }),
  }),
});
provider.listen(Number(port), "127.0.0.1", () => console.log("ready"));
