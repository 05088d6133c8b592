-- A webhook that is deleted while a job ends: the trigger waits for the deletion, and then has nothing to tell it. Before, the delivery
-- referred to a row that was gone, and the job's end failed.
CREATE OR REPLACE FUNCTION job_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO deliveries (id, hook, job, body, state, next_at, created_at)
    SELECT replace(CAST(gen_random_uuid() AS text), '-', ''), hooks.id, NEW.id,
        CAST(json_build_object(
            'type', 'job.ended',
            'job', json_build_object(
                'id', NEW.id, 'kind', NEW.kind, 'state', NEW.state, 'plan', NEW.plan,
                'matrix', encode(NEW.matrix, 'hex'), 'device', NEW.device, 'error', NEW.error,
                'created_at', to_char(to_timestamp(NEW.created_at / 1000.0) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
                'finished_at', to_char(to_timestamp(NEW.finished_at / 1000.0) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')))
            AS text),
        'pending', hooks.now, hooks.now
    FROM (
        -- By the clock by which deliveries are claimed.
        SELECT webhooks.id, clock_ms() AS now FROM webhooks
        WHERE webhooks.namespace = NEW.namespace AND strpos(webhooks.states, ',' || NEW.state || ',') > 0
        FOR KEY SHARE) hooks;
    RETURN NULL;
END $$;
