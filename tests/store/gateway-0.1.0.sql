BEGIN TRANSACTION;
CREATE TABLE leases (
    id TEXT PRIMARY KEY, worker TEXT NOT NULL, drawn_us INTEGER NOT NULL, draw TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "leases" VALUES('req_fb7fdddb2accc3e8b52249b0a981e73f','0cea544bc42f494285f114c5a3d82ebb',1795490428779475,'{"record": {"id": "req_fb7fdddb2accc3e8b52249b0a981e73f", "time": 1795490428.7792346, "key": "alice", "team": "crew", "endpoint": "completions", "model": "quiet", "label_model": "quiet", "routed_model": "quiet", "returned_model": null, "upstream": "silent", "status": 0, "stream": false, "usage": {"prompt_tokens": 2, "completion_tokens": 50, "cached_tokens": 0, "reasoning_tokens": 0, "source": "estimated"}, "ended": "lost", "first_byte_s": null, "duration_s": 0.0, "attempts": 0, "truncated": false, "client_request_id": null}, "claims": [{"scope": "key:alice", "unit": "requests", "per": "day", "model": null, "limit": 10, "amount": 1, "period_us": 0, "starts": "2026-11-24", "resets_us": 1795564800000000, "is_enforced": true}, {"scope": "key:alice", "unit": "requests", "per": "minute", "model": null, "limit": 100, "amount": 1, "period_us": 60000000, "starts": "", "resets_us": 0, "is_enforced": true}, {"scope": "team:crew", "unit": "tokens", "per": "month", "model": null, "limit": 100000, "amount": 52, "period_us": 0, "starts": "2026-11", "resets_us": 1796083200000000, "is_enforced": true}, {"scope": "key:alice", "unit": "parallel", "per": "", "model": null, "limit": 4, "amount": 1, "period_us": 0, "starts": "", "resets_us": 0, "is_enforced": true}]}');
CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO "meta" VALUES('now_us',1795490428779475);
INSERT INTO "meta" VALUES('schema',1);
CREATE TABLE records (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, key TEXT NOT NULL, record TEXT NOT NULL);
INSERT INTO "records" VALUES(1,'req_5bff10cd8b052e4db86b2b1e541a3bc8','alice','{"id": "req_5bff10cd8b052e4db86b2b1e541a3bc8", "time": 1795490428.6709397, "key": "alice", "team": "crew", "endpoint": "completions", "model": "gpt-3.5-turbo-instruct", "label_model": "gpt-3.5-turbo-instruct", "routed_model": "gpt-3.5-turbo-instruct", "returned_model": "gpt-3.5-turbo-instruct", "upstream": "main", "status": 200, "stream": false, "usage": {"prompt_tokens": 1, "completion_tokens": 20, "cached_tokens": 0, "reasoning_tokens": 0, "source": "reported"}, "ended": "done", "first_byte_s": 0.030806714996288065, "duration_s": 0.030959764997533057, "attempts": 1, "truncated": false, "client_request_id": null}');
INSERT INTO "records" VALUES(2,'req_e9575297b1634b5d27fafbffcc2f1e00','alice','{"id": "req_e9575297b1634b5d27fafbffcc2f1e00", "time": 1795490428.716047, "key": "alice", "team": "crew", "endpoint": "completions", "model": "gpt-3.5-turbo-instruct", "label_model": "gpt-3.5-turbo-instruct", "routed_model": "gpt-3.5-turbo-instruct", "returned_model": "gpt-3.5-turbo-instruct", "upstream": "main", "status": 200, "stream": false, "usage": {"prompt_tokens": 1, "completion_tokens": 20, "cached_tokens": 0, "reasoning_tokens": 0, "source": "reported"}, "ended": "done", "first_byte_s": 0.0022770460054744035, "duration_s": 0.0023706720021436922, "attempts": 1, "truncated": false, "client_request_id": null}');
INSERT INTO "records" VALUES(3,'req_1d85642e81b0421b616da1a82e4f9ca8','bob','{"id": "req_1d85642e81b0421b616da1a82e4f9ca8", "time": 1795490428.7475917, "key": "bob", "team": null, "endpoint": "completions", "model": "gpt-3.5-turbo-instruct", "label_model": "gpt-3.5-turbo-instruct", "routed_model": "gpt-3.5-turbo-instruct", "returned_model": "gpt-3.5-turbo-instruct", "upstream": "main", "status": 200, "stream": false, "usage": {"prompt_tokens": 1, "completion_tokens": 20, "cached_tokens": 0, "reasoning_tokens": 0, "source": "reported"}, "ended": "done", "first_byte_s": 0.002116479998221621, "duration_s": 0.002226709999376908, "attempts": 1, "truncated": false, "client_request_id": null}');
INSERT INTO "records" VALUES(4,'req_1c83adc43c8fa63c7fe1869d6cb0f39e','alice','{"id": "req_1c83adc43c8fa63c7fe1869d6cb0f39e", "time": 1795490428.7636013, "key": "alice", "team": "crew", "endpoint": "chat", "model": "gpt-4o-mini", "label_model": "gpt-4o-mini", "routed_model": "gpt-4o-mini", "returned_model": "gpt-4o-mini", "upstream": "main", "status": 200, "stream": true, "usage": {"prompt_tokens": 2, "completion_tokens": 28, "cached_tokens": 0, "reasoning_tokens": 0, "source": "reported"}, "ended": "done", "first_byte_s": 0.003178733000822831, "duration_s": 0.003230857000744436, "attempts": 1, "truncated": false, "client_request_id": "mine"}');
CREATE TABLE sums (
    day TEXT, key TEXT, team TEXT, model TEXT, upstream TEXT, endpoint TEXT,
    requests INTEGER NOT NULL, errors INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL, reasoning_tokens INTEGER NOT NULL,
    estimated_tokens INTEGER NOT NULL,
    PRIMARY KEY (day, key, team, model, upstream, endpoint)) WITHOUT ROWID;
INSERT INTO "sums" VALUES('2026-11-24','alice','crew','gpt-3.5-turbo-instruct','main','completions',2,0,2,40,0,0,0);
INSERT INTO "sums" VALUES('2026-11-24','alice','crew','gpt-4o-mini','main','chat',1,0,2,28,0,0,0);
INSERT INTO "sums" VALUES('2026-11-24','bob','','gpt-3.5-turbo-instruct','main','completions',1,0,1,20,0,0,0);
CREATE TABLE windows (
    id TEXT PRIMARY KEY, used INTEGER NOT NULL, reserved INTEGER NOT NULL, at_us INTEGER NOT NULL,
    resets_us INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO "windows" VALUES('key:alice|parallel|||',1,0,1795490428673288,0);
INSERT INTO "windows" VALUES('key:alice|requests|day||2026-11-24',3,1,1795490428673288,1795564800000000);
INSERT INTO "windows" VALUES('key:alice|requests|minute||',4,0,1795490428673288,0);
INSERT INTO "windows" VALUES('key:bob|tokens|day||2026-11-24',21,0,1795490428747884,1795564800000000);
INSERT INTO "windows" VALUES('team:crew|tokens|month||2026-11',72,52,1795490428673288,1796083200000000);
CREATE INDEX records_by_key ON records (key, seq);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('records',4);
COMMIT;
