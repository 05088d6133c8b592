-- What each turn (namespace and token) has searched, by the five minutes in which its jobs ended, in milliseconds: a claim reads some dozens of
-- rows of each turn, and not all jobs that ended within the hour. PostgreSQL has several slots, so that ends of jobs do not wait for each other.
CREATE TABLE searched (
    turn    TEXT    NOT NULL,
    since   INTEGER NOT NULL,
    slot    INTEGER NOT NULL,
    seconds REAL    NOT NULL,
    PRIMARY KEY (turn, since, slot)
) STRICT, WITHOUT ROWID;

INSERT INTO searched (turn, since, slot, seconds)
SELECT turn, finished_at / 300000 * 300000, 0, SUM(MAX(search_seconds, 1.0)) FROM jobs
WHERE finished_at > CAST(strftime('%s', 'now') AS INTEGER) * 1000 - 3600000 AND imported_at IS NULL
GROUP BY 1, 2;

-- A job counts as a second at least, so that a row of failures is no free ride.
CREATE TRIGGER jobs_searched AFTER UPDATE OF state ON jobs
WHEN NEW.state IN ('succeeded', 'failed', 'cancelled') AND OLD.state IN ('queued', 'running')
BEGIN
    INSERT INTO searched (turn, since, slot, seconds)
    VALUES (NEW.turn, NEW.finished_at / 300000 * 300000, 0, MAX(NEW.search_seconds, 1.0))
    ON CONFLICT (turn, since, slot) DO UPDATE SET seconds = seconds + excluded.seconds;
END;

-- When a process last began a round of upkeep by these rules, so that one does of all that have them.
CREATE TABLE rounds (
    rules    TEXT    NOT NULL PRIMARY KEY,
    begun_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Whether a store is just being copied here: until all of it is there, nobody is to open it.
ALTER TABLE store_id ADD COLUMN arriving INTEGER NOT NULL DEFAULT 0;

-- Bytes that were taken (`stored`) for files that have no place yet: they are in no count of the files.
CREATE TABLE under_way (
    id    TEXT    NOT NULL PRIMARY KEY,
    bytes INTEGER NOT NULL,
    at    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
