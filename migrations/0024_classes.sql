-- Jobs wait for a class of devices, any of which may run them. A worker's device is told from others of its name by a key, and the name of
-- a worker is one process's at a time.

-- The class whose devices may run the job; of jobs of earlier versions it is not known, and they wait for the name of a device, as they did.
ALTER TABLE jobs ADD COLUMN device_class TEXT;
-- The key of the one device that may, if it was asked for.
ALTER TABLE jobs ADD COLUMN only_on TEXT;
-- The key of the device that ran it last.
ALTER TABLE jobs ADD COLUMN ran_on TEXT;
-- The format that a worker must understand to run it.
ALTER TABLE jobs ADD COLUMN needs INTEGER NOT NULL DEFAULT 1;
-- What a worker asks for, and whose turn it is.
ALTER TABLE jobs ADD COLUMN queue TEXT GENERATED ALWAYS AS (coalesce(only_on, device_class, device, '')) VIRTUAL;
ALTER TABLE jobs ADD COLUMN turn TEXT GENERATED ALWAYS AS (namespace || '/' || coalesce(token, '')) VIRTUAL;

-- A claim goes from one priority and turn of its queue to the next, and takes the oldest of one; it reads no other job that waits.
DROP INDEX jobs_claimable;
CREATE INDEX jobs_waiting ON jobs (kind, queue, priority, turn, created_at, id, needs) WHERE state = 'queued';
-- As many as there are workers; sought for leases that have expired.
CREATE INDEX jobs_running ON jobs (kind, queue) WHERE state = 'running';
CREATE INDEX jobs_running_of ON jobs (turn) WHERE state = 'running';
-- How much each token has searched within the last hour and day, and what it has queued.
DROP INDEX jobs_by_token;
CREATE INDEX jobs_by_turn ON jobs (turn, finished_at);

-- What the worker says of itself and of the device's evaluator, as JSON.
ALTER TABLE devices ADD COLUMN serving TEXT;

-- Which process has a worker's name. It is free when its process has ended in good order, or was not seen for long.
CREATE TABLE workers (
    name    TEXT    NOT NULL PRIMARY KEY,
    -- One start of a process.
    process TEXT    NOT NULL,
    host    TEXT    NOT NULL,
    -- What a lock of the host lets one process at a time be at, so that who is there now knows that the former has ended.
    place   TEXT    NOT NULL,
    version TEXT    NOT NULL,
    since   INTEGER NOT NULL,
    seen_at INTEGER NOT NULL
) STRICT;
