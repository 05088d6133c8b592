-- What migration 24 of SQLite makes. Final once landed.

-- The class whose devices may run the job; of jobs of earlier versions it is not known, and they wait for the name of a device, as they did.
ALTER TABLE jobs ADD COLUMN device_class TEXT COLLATE "C";
-- The key of the one device that may, if it was asked for.
ALTER TABLE jobs ADD COLUMN only_on TEXT COLLATE "C";
-- The key of the device that ran it last.
ALTER TABLE jobs ADD COLUMN ran_on TEXT COLLATE "C";
-- The format that a worker must understand to run it.
ALTER TABLE jobs ADD COLUMN needs BIGINT NOT NULL DEFAULT 1;
-- What a worker asks for, and whose turn it is. Neither changes while a job runs, so that its rows need no new entry in an index.
ALTER TABLE jobs ADD COLUMN queue TEXT COLLATE "C" GENERATED ALWAYS AS (coalesce(only_on, device_class, device, '')) STORED;
ALTER TABLE jobs ADD COLUMN turn TEXT COLLATE "C" GENERATED ALWAYS AS (namespace || '/' || coalesce(token, '')) STORED;

-- A claim goes from one priority and turn of its queue to the next, and takes the oldest of one; it reads no other job that waits.
DROP INDEX jobs_claimable;
CREATE INDEX jobs_waiting ON jobs (kind, queue, priority, turn, created_at, id, needs) WHERE state = 'queued';
-- As many as there are workers; sought for leases that have expired.
DROP INDEX jobs_running;
CREATE INDEX jobs_running ON jobs (kind, queue) WHERE state = 'running';
CREATE INDEX jobs_running_of ON jobs (turn) WHERE state = 'running';
-- How much each token has searched within the last hour and day, and what it has queued.
DROP INDEX jobs_by_token;
CREATE INDEX jobs_by_turn ON jobs (turn, finished_at);

-- What the worker says of itself and of the device's evaluator, as JSON.
ALTER TABLE devices ADD COLUMN serving TEXT;

-- Which process has a worker's name. It is free when its process has ended in good order, or was not seen for long.
CREATE TABLE workers (
    name    TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    -- One start of a process.
    process TEXT   NOT NULL,
    host    TEXT   NOT NULL,
    -- What a lock of the host lets one process at a time be at, so that who is there now knows that the former has ended.
    place   TEXT   NOT NULL,
    version TEXT   NOT NULL,
    since   BIGINT NOT NULL,
    seen_at BIGINT NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);
