-- What migration 26 of SQLite makes.
CREATE TABLE stored (
    "only"     SMALLINT NOT NULL PRIMARY KEY CHECK ("only" = 1),
    bytes      BIGINT   NOT NULL CHECK (bytes >= 0),
    taken      BIGINT   NOT NULL,
    counted_at BIGINT   NOT NULL
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50);
INSERT INTO stored ("only", bytes, taken, counted_at) VALUES (1, 0, 0, 0);
