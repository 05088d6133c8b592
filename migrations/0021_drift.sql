-- What is known of a plan since it was made: how often it answered, what measuring it again said, and for which change of the software
-- around its device a job was queued that measures its key anew.
CREATE TABLE drift (
    plan        TEXT    NOT NULL PRIMARY KEY,
    uses        INTEGER NOT NULL DEFAULT 0,
    used_at     INTEGER,
    checked_at  INTEGER,
    verdict     TEXT,
    why         TEXT,
    median_us   REAL,
    vendor_us   REAL,
    renewed_at  INTEGER,
    renewed_for TEXT,
    CHECK ((checked_at IS NULL) = (verdict IS NULL) AND (renewed_at IS NULL) = (renewed_for IS NULL))
) STRICT;

CREATE INDEX drift_checked ON drift (checked_at) WHERE checked_at IS NOT NULL;
CREATE INDEX drift_renewed ON drift (renewed_at) WHERE renewed_at IS NOT NULL;
CREATE INDEX drift_used ON drift (uses) WHERE uses > 0;

CREATE TRIGGER plans_gone AFTER DELETE ON plans
BEGIN
    DELETE FROM drift WHERE plan = OLD.id;
END;
