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
    created_at       INTEGER NOT NULL,
    -- Tried candidates of the job that have features; kept here so that new ones are counted without reading a trial.
    described        INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX job_features_of_scope ON job_features (op, device_class, features_version, created_at, job);
CREATE INDEX job_features_since ON job_features (features_version, created_at, op, device_class, described);

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

-- Every change of the model in use, so that each can be taken back. A row without a model puts all of them out of use. None
-- is ever removed, nor a model that has one.
CREATE TABLE activations (
    seq          INTEGER NOT NULL PRIMARY KEY,
    op           TEXT    NOT NULL CHECK (op IN ('spmm', 'sptrsv')),
    device_class TEXT    NOT NULL,
    model        TEXT    REFERENCES models (id),
    reason       TEXT    NOT NULL,
    at           INTEGER NOT NULL
) STRICT;

CREATE INDEX activations_of_scope ON activations (op, device_class, seq);
CREATE INDEX activations_by_model ON activations (model);

-- What a lease decides is a column; the rest of a training is its body.
CREATE TABLE trainings (
    id           TEXT    NOT NULL PRIMARY KEY,
    op           TEXT    NOT NULL CHECK (op IN ('spmm', 'sptrsv')),
    device_class TEXT    NOT NULL,
    state        TEXT    NOT NULL CHECK (state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')),
    version      INTEGER NOT NULL,
    body         TEXT    NOT NULL,
    attempts     INTEGER NOT NULL DEFAULT 0,
    created_at   INTEGER NOT NULL,
    cancel_requested INTEGER NOT NULL DEFAULT 0 CHECK (cancel_requested IN (0, 1)),
    owner        TEXT,
    epoch        INTEGER NOT NULL DEFAULT 0,
    lease_until  INTEGER,
    CHECK ((state = 'running') = (owner IS NOT NULL)),
    CHECK ((state = 'running') = (lease_until IS NOT NULL)),
    CHECK (state <> 'queued' OR cancel_requested = 0)
) STRICT;

-- One training a scope at a time. One that was asked to stop makes way for its successor, as a job does.
CREATE UNIQUE INDEX trainings_one_live ON trainings (op, device_class)
    WHERE state IN ('queued', 'running') AND cancel_requested = 0;
CREATE INDEX trainings_claimable ON trainings (created_at, id) WHERE state IN ('queued', 'running');
CREATE INDEX trainings_newest ON trainings (created_at, id);

-- A plan from a model alone is never the answer of a key: only plans that were measured are. Each kind has its index of keys.
ALTER TABLE plans ADD COLUMN predicted INTEGER NOT NULL DEFAULT 0 CHECK (predicted IN (0, 1));

DROP INDEX plans_by_key;
DROP INDEX plans_by_problem;
CREATE INDEX plans_by_key ON plans (pattern_digest, problem, device_class, l2_policy, created_at, id)
    WHERE predicted = 0;
CREATE INDEX plans_by_problem ON plans (problem, device_class, l2_policy, created_at, id) WHERE predicted = 0;
CREATE INDEX plans_predicted ON plans (pattern_digest, problem, device_class, l2_policy, created_at, id)
    WHERE predicted = 1;

-- Predicted plans go with age, but for those that a job names.
CREATE INDEX jobs_by_plan ON jobs (plan);

-- The job that measures what a predicted plan promised.
ALTER TABLE jobs ADD COLUMN follow_up TEXT;
