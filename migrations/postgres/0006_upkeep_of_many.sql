-- What migration 27 of SQLite makes. By the server's clock, and in several slots, so that ends of jobs do not wait for each other.
CREATE TABLE searched (
    turn    TEXT COLLATE "C" NOT NULL,
    since   BIGINT           NOT NULL,
    slot    BIGINT           NOT NULL,
    seconds DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (turn, since, slot)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);

INSERT INTO searched (turn, since, slot, seconds)
SELECT turn, finished_at / 300000 * 300000, 0, SUM(GREATEST(search_seconds, 1.0)) FROM jobs
WHERE finished_at > clock_ms() - 3600000 AND imported_at IS NULL
GROUP BY 1, 2;

CREATE FUNCTION job_searched() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO searched (turn, since, slot, seconds)
    VALUES (NEW.turn, clock_ms() / 300000 * 300000, pg_backend_pid() % 4, GREATEST(NEW.search_seconds, 1.0))
    ON CONFLICT (turn, since, slot) DO UPDATE SET seconds = searched.seconds + excluded.seconds;
    RETURN NULL;
END $$;
CREATE TRIGGER jobs_searched AFTER UPDATE OF state ON jobs FOR EACH ROW
    WHEN (NEW.state IN ('succeeded', 'failed', 'cancelled') AND OLD.state IN ('queued', 'running'))
    EXECUTE FUNCTION job_searched();

CREATE TABLE rounds (
    rules    TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    begun_at BIGINT           NOT NULL
);

ALTER TABLE store_id ADD COLUMN arriving BIGINT NOT NULL DEFAULT 0;

CREATE TABLE under_way (
    id    TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    bytes BIGINT           NOT NULL,
    at    BIGINT           NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100);
