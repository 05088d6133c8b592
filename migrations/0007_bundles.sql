-- Bundles: plans as files that run without the service. One that was built here can be built again as long as its matrix is stored,
-- so upkeep may remove it; one that was imported cannot.
CREATE TABLE bundles (
    plan           TEXT    NOT NULL REFERENCES plans (id) ON DELETE CASCADE,
    -- Whether the matrix's values were left out.
    without_values INTEGER NOT NULL CHECK (without_values IN (0, 1)),
    blob           BLOB    NOT NULL CHECK (length(blob) = 32),
    bytes          INTEGER NOT NULL,
    sha256         BLOB    NOT NULL CHECK (length(sha256) = 32),
    imported       INTEGER NOT NULL CHECK (imported IN (0, 1)),
    created_at     INTEGER NOT NULL,
    PRIMARY KEY (plan, without_values)
) STRICT;

CREATE INDEX bundles_by_age ON bundles (created_at) WHERE imported = 0;
