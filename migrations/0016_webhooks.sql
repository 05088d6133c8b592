-- Webhooks: addresses that are told of the ends of jobs, and what they have been told. A secret is kept as it is, since it signs.
CREATE TABLE webhooks (
    id         TEXT    NOT NULL PRIMARY KEY,
    url        TEXT    NOT NULL,
    secret     TEXT    NOT NULL,
    -- Of which final states it is told: names between commas, also before the first and behind the last.
    states     TEXT    NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;

CREATE TABLE deliveries (
    id         TEXT    NOT NULL PRIMARY KEY,
    hook       TEXT    NOT NULL REFERENCES webhooks (id) ON DELETE CASCADE,
    job        TEXT    NOT NULL,
    body       TEXT    NOT NULL,
    state      TEXT    NOT NULL CHECK (state IN ('pending', 'delivered', 'failed')),
    attempts   INTEGER NOT NULL DEFAULT 0,
    -- When a pending one is due, which is later than now while it is being sent.
    next_at    INTEGER NOT NULL,
    status     INTEGER,
    error      TEXT,
    created_at INTEGER NOT NULL,
    ended_at   INTEGER
) STRICT;

CREATE INDEX deliveries_due ON deliveries (next_at) WHERE state = 'pending';
CREATE INDEX deliveries_of_hook ON deliveries (hook, created_at, id);
CREATE INDEX deliveries_ended ON deliveries (ended_at) WHERE state <> 'pending';

-- Whatever ends a job also queues what is to be told of it, in the same transaction.
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
    FROM webhooks WHERE instr(webhooks.states, ',' || NEW.state || ',') > 0;
END;
