-- What models learn from, and the models. Trials bring their own features, as little-endian f32; what all candidates of a job
-- have in common is stored once, with the version of the features and the class of device.

ALTER TABLE trials ADD COLUMN features BLOB;

CREATE TABLE job_features (
    job              TEXT    NOT NULL PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
    op               TEXT    NOT NULL CHECK (op IN ('spmm', 'sptrsv')),
    device_class     TEXT    NOT NULL,
    features_version INTEGER NOT NULL,
    problem          TEXT    NOT NULL,
    matrix           BLOB    NOT NULL CHECK (length(matrix) = 32),
    pattern_digest   BLOB    NOT NULL CHECK (length(pattern_digest) = 32),
    matrix_name      TEXT,
    shared           BLOB    NOT NULL,
    created_at       INTEGER NOT NULL
) STRICT;

CREATE INDEX job_features_newest ON job_features (op, device_class, features_version, created_at, job);

CREATE TABLE models (
    id               TEXT    NOT NULL PRIMARY KEY,
    op               TEXT    NOT NULL CHECK (op IN ('spmm', 'sptrsv')),
    device_class     TEXT    NOT NULL,
    features_version INTEGER NOT NULL,
    created_at       INTEGER NOT NULL,
    version          INTEGER NOT NULL,
    card             TEXT    NOT NULL,
    -- The model file; small enough to stand beside its card, so that both come and go together.
    file             BLOB    NOT NULL
) STRICT;

CREATE INDEX models_newest ON models (created_at, id);
CREATE INDEX models_of_scope ON models (op, device_class, created_at, id);

-- Every change of the model in use, so that each can be taken back. A row without a model puts all of them out of use.
CREATE TABLE activations (
    seq          INTEGER NOT NULL PRIMARY KEY,
    op           TEXT    NOT NULL CHECK (op IN ('spmm', 'sptrsv')),
    device_class TEXT    NOT NULL,
    model        TEXT,
    reason       TEXT    NOT NULL,
    at           INTEGER NOT NULL
) STRICT;

CREATE INDEX activations_of_scope ON activations (op, device_class, seq);

CREATE TABLE trainings (
    id           TEXT    NOT NULL PRIMARY KEY,
    op           TEXT    NOT NULL CHECK (op IN ('spmm', 'sptrsv')),
    device_class TEXT    NOT NULL,
    state        TEXT    NOT NULL CHECK (state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')),
    version      INTEGER NOT NULL,
    body         TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    cancel_requested INTEGER NOT NULL DEFAULT 0 CHECK (cancel_requested IN (0, 1)),
    owner        TEXT,
    epoch        INTEGER NOT NULL DEFAULT 0,
    lease_until  INTEGER,
    CHECK ((state = 'running') = (owner IS NOT NULL)),
    CHECK ((state = 'running') = (lease_until IS NOT NULL))
) STRICT;

-- One training a scope at a time.
CREATE UNIQUE INDEX trainings_one_live ON trainings (op, device_class) WHERE state IN ('queued', 'running');
CREATE INDEX trainings_newest ON trainings (created_at, id);

-- A plan from a model alone is never the answer of a key: only plans that were measured are.
ALTER TABLE plans ADD COLUMN predicted INTEGER NOT NULL DEFAULT 0 CHECK (predicted IN (0, 1));

-- The job that measures what a predicted plan promised.
ALTER TABLE jobs ADD COLUMN follow_up TEXT;
