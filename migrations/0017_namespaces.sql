-- Namespaces. A matrix is its contents: its facts and its file are there once, under its digest. Who has it, under which name, since
-- when, pinned or not and at whose expense is a holding; what is not held in a namespace does not exist there. Plans, jobs and webhooks
-- belong to one. What was there before is of the namespace 'default'.
CREATE TABLE holdings (
    namespace      TEXT    NOT NULL,
    digest         BLOB    NOT NULL REFERENCES matrices (digest),
    pattern_digest BLOB    NOT NULL CHECK (length(pattern_digest) = 32),
    name           TEXT,
    created_at     INTEGER NOT NULL,
    -- Whose quota it counts in, and for how much.
    token          TEXT,
    charged        INTEGER NOT NULL DEFAULT 0,
    -- What retention leaves alone: when it was pinned, or nothing.
    pinned_at      INTEGER,
    PRIMARY KEY (namespace, digest)
) STRICT, WITHOUT ROWID;

INSERT INTO holdings (namespace, digest, pattern_digest, name, created_at, token, charged, pinned_at)
SELECT 'default', digest, pattern_digest, CASE WHEN json_valid(facts) THEN facts ->> '$.name' END, created_at, token, charged,
    pinned_at
FROM matrices;

-- Names are sought among the newest, without reading facts.
CREATE INDEX holdings_newest ON holdings (namespace, created_at, digest, name);
CREATE INDEX holdings_by_pattern ON holdings (namespace, pattern_digest);
CREATE INDEX holdings_by_token ON holdings (namespace, token, charged) WHERE token IS NOT NULL;
CREATE INDEX holdings_pinned ON holdings (namespace, pinned_at) WHERE pinned_at IS NOT NULL;
-- Whether another has it too.
CREATE INDEX holdings_by_digest ON holdings (digest);

DROP INDEX matrices_newest;
DROP INDEX matrices_named;
DROP INDEX matrices_by_pattern;
DROP INDEX matrices_by_token;
DROP INDEX matrices_pinned;
ALTER TABLE matrices DROP COLUMN token;
ALTER TABLE matrices DROP COLUMN charged;
ALTER TABLE matrices DROP COLUMN pinned_at;

-- A plan's token is that of the job that made it, or whose import brought it.
ALTER TABLE plans ADD COLUMN namespace TEXT NOT NULL DEFAULT 'default';
ALTER TABLE plans ADD COLUMN token TEXT;
ALTER TABLE plans ADD COLUMN charged INTEGER NOT NULL DEFAULT 0;
DROP INDEX plans_by_key;
DROP INDEX plans_by_problem;
DROP INDEX plans_predicted;
DROP INDEX plans_by_matrix;
DROP INDEX plans_pinned;
CREATE INDEX plans_by_key ON plans (namespace, pattern_digest, problem, device_class, l2_policy, created_at, id)
    WHERE predicted = 0;
CREATE INDEX plans_by_problem ON plans (namespace, problem, device_class, l2_policy, created_at, id) WHERE predicted = 0;
CREATE INDEX plans_predicted ON plans (namespace, pattern_digest, problem, device_class, l2_policy, created_at, id)
    WHERE predicted = 1;
CREATE INDEX plans_by_matrix ON plans (namespace, matrix, created_at);
CREATE INDEX plans_pinned ON plans (namespace, pinned_at) WHERE pinned_at IS NOT NULL;
CREATE INDEX plans_by_token ON plans (namespace, token, charged) WHERE token IS NOT NULL;
-- What tokens may share with other namespaces, by key and by matrix.
CREATE INDEX plans_of_tokens ON plans (pattern_digest, problem, device_class, l2_policy, created_at, id)
    WHERE predicted = 0 AND token IS NOT NULL;
CREATE INDEX plans_of_tokens_by_matrix ON plans (matrix) WHERE predicted = 0 AND token IS NOT NULL;

DROP INDEX jobs_by_device;
DROP INDEX jobs_by_device_and_state;
DROP INDEX jobs_by_matrix;
DROP INDEX jobs_by_state;
DROP INDEX jobs_by_token;
CREATE INDEX jobs_newest_of ON jobs (namespace, created_at, id);
CREATE INDEX jobs_by_device ON jobs (namespace, device, created_at, id);
CREATE INDEX jobs_by_device_and_state ON jobs (namespace, device, state, created_at, id);
CREATE INDEX jobs_by_matrix ON jobs (namespace, matrix, created_at, id);
-- Jobs are counted by kind as well, from the index alone.
CREATE INDEX jobs_by_state ON jobs (namespace, state, created_at, id, kind);
-- How much each token has searched lately, and what it has queued.
CREATE INDEX jobs_by_token ON jobs (namespace, token, finished_at);

-- A name is one token's of its namespace. With `share_plans`, other namespaces may be answered with the plans that it made, as long
-- as it is in force. When it was last used is told to the hour.
DROP INDEX tokens_in_force;
CREATE UNIQUE INDEX tokens_in_force ON tokens (namespace, name) WHERE revoked_at IS NULL;
ALTER TABLE tokens ADD COLUMN share_plans INTEGER NOT NULL DEFAULT 0 CHECK (share_plans IN (0, 1));
ALTER TABLE tokens ADD COLUMN last_used_at INTEGER;

-- A webhook hears of its namespace's jobs.
ALTER TABLE webhooks ADD COLUMN namespace TEXT NOT NULL DEFAULT 'default';
DROP TRIGGER jobs_ended;
CREATE TRIGGER jobs_ended AFTER UPDATE OF state ON jobs
WHEN NEW.state IN ('succeeded', 'failed', 'cancelled') AND OLD.state IN ('queued', 'running')
BEGIN
    INSERT INTO deliveries (id, hook, job, body, state, next_at, created_at)
    SELECT lower(hex(randomblob(16))), webhooks.id, NEW.id,
        json_object(
            'type', 'job.ended',
            'job', json_object(
                'id', NEW.id, 'kind', NEW.kind, 'state', NEW.state, 'plan', NEW.plan,
                'matrix', lower(hex(NEW.matrix)), 'device', NEW.device, 'error', NEW.error,
                'created_at', strftime('%Y-%m-%dT%H:%M:%fZ', NEW.created_at / 1000.0, 'unixepoch'),
                'finished_at', strftime('%Y-%m-%dT%H:%M:%fZ', NEW.finished_at / 1000.0, 'unixepoch'))),
        'pending', NEW.finished_at, NEW.finished_at
    FROM webhooks WHERE webhooks.namespace = NEW.namespace AND instr(webhooks.states, ',' || NEW.state || ',') > 0;
END;
