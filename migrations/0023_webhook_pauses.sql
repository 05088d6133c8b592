-- A webhook that does not answer is paused, and what it was to be told is claimed by an index for each webhook.
ALTER TABLE webhooks ADD COLUMN failures INTEGER NOT NULL DEFAULT 0;
ALTER TABLE webhooks ADD COLUMN paused_until INTEGER NOT NULL DEFAULT 0;

DROP INDEX deliveries_due;
CREATE INDEX deliveries_due ON deliveries (hook, next_at, id) WHERE state = 'pending';
CREATE INDEX deliveries_waiting ON deliveries (hook, created_at) WHERE state = 'pending';

-- As before, but a training, which has no matrix, is told without one: hex(NULL) is an empty text.
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
                'matrix', CASE WHEN NEW.matrix IS NULL THEN NULL ELSE lower(hex(NEW.matrix)) END,
                'device', NEW.device, 'error', NEW.error,
                'created_at', strftime('%Y-%m-%dT%H:%M:%fZ', NEW.created_at / 1000.0, 'unixepoch'),
                'finished_at', strftime('%Y-%m-%dT%H:%M:%fZ', NEW.finished_at / 1000.0, 'unixepoch'))),
        'pending', NEW.finished_at, NEW.finished_at
    FROM webhooks WHERE webhooks.namespace = NEW.namespace AND instr(webhooks.states, ',' || NEW.state || ',') > 0;
END;
