-- One queue. A training becomes a row of `jobs` with a kind of its own, so that claims, leases, endings and events are the same for
-- both; and no table lists the operations any more, so that a new one needs no migration.
--
-- `jobs` is changed in place and not rebuilt: its children (trials, events, features, keys) would go with the old table by ON
-- DELETE CASCADE, and copying them would write a large store twice. Foreign keys cannot be switched off in a migration's
-- transaction.

-- A training has no matrix, and no device claims it: those two columns may be empty from now on.
DROP INDEX jobs_claimable;
DROP INDEX jobs_by_device;
DROP INDEX jobs_by_device_and_state;
DROP INDEX jobs_by_matrix;
DROP INDEX jobs_by_state;
ALTER TABLE jobs RENAME COLUMN device TO required_device;
ALTER TABLE jobs RENAME COLUMN matrix TO required_matrix;
ALTER TABLE jobs ADD COLUMN kind TEXT NOT NULL DEFAULT 'tune' CHECK (kind IN ('tune', 'train'));
ALTER TABLE jobs ADD COLUMN device TEXT;
ALTER TABLE jobs ADD COLUMN matrix BLOB CHECK (length(matrix) = 32);
UPDATE jobs SET device = required_device, matrix = required_matrix;
ALTER TABLE jobs DROP COLUMN required_device;
ALTER TABLE jobs DROP COLUMN required_matrix;
-- What only one kind has and nothing is searched by, as JSON. A condition on other columns can come with a new column alone.
ALTER TABLE jobs ADD COLUMN detail TEXT
    CHECK ((kind = 'tune') = (matrix IS NOT NULL) AND (kind = 'tune') = (device IS NOT NULL));

CREATE INDEX jobs_claimable ON jobs (kind, device, created_at, id) WHERE state IN ('queued', 'running');
CREATE INDEX jobs_by_device ON jobs (device, created_at, id);
CREATE INDEX jobs_by_device_and_state ON jobs (device, state, created_at, id);
CREATE INDEX jobs_by_matrix ON jobs (matrix, created_at, id);
-- With the kind, so that jobs are counted by both from the index alone.
CREATE INDEX jobs_by_state ON jobs (state, created_at, id, kind);
-- Few among many.
CREATE INDEX jobs_trainings ON jobs (created_at, id) WHERE kind = 'train';

-- A training whose body is no JSON stays what it was: there, and not to be read.
CREATE TEMPORARY TABLE moved AS
    SELECT *, CASE WHEN json_valid(body) THEN body ELSE '{}' END AS known FROM trainings;

INSERT INTO jobs (id, kind, version, request, dedup_key, state, stage, error, attempts, created_at, started_at, finished_at,
    cancel_requested, owner, epoch, lease_until, detail, last_seq)
SELECT id, 'train', version, coalesce(known -> '$.request', body), 'train;' || op || ';' || device_class, state,
    coalesce(known ->> '$.stage', 'waiting'), known ->> '$.error', attempts, created_at,
    CAST(known ->> '$.started_at' AS INTEGER),
    CASE WHEN state IN ('queued', 'running') THEN NULL
        ELSE coalesce(CAST(known ->> '$.finished_at' AS INTEGER), created_at) END,
    cancel_requested, owner, epoch, lease_until,
    json_object(
        'progress', json(coalesce(known -> '$.progress', '0.0')),
        'message', known ->> '$.message',
        'model', known ->> '$.model',
        'activated', json(coalesce(known -> '$.activated', 'false')),
        'features_version', known -> '$.features_version'),
    CASE WHEN known ->> '$.id' IS NOT NULL THEN 4294967296 ELSE 0 END
FROM moved;

-- Every job's events end with how it stands, and so do those of a training from now on. Before, a stream numbered them from
-- whatever number the client named, and the last one 2^32: events from now on come after any number that a client can have.
INSERT INTO events (job, seq, at, version, body)
SELECT id, 4294967296, coalesce(CAST(known ->> '$.finished_at' AS INTEGER), CAST(known ->> '$.started_at' AS INTEGER), created_at), 1,
    json_object('event', 'job', 'data', json_set(known, '$.state', state, '$.attempts', attempts))
FROM moved WHERE known ->> '$.id' IS NOT NULL;

DROP TABLE moved;
DROP TABLE trainings;

-- The tables that listed the operations, without that list. The first two have no children; models are copied together with
-- their activations.
CREATE TABLE described (
    job              TEXT    NOT NULL PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
    op               TEXT    NOT NULL,
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
INSERT INTO described SELECT job, op, device_class, features_version, problem, matrix, pattern_digest, matrix_name, shared,
    created_at, described FROM job_features;
DROP TABLE job_features;
ALTER TABLE described RENAME TO job_features;
CREATE INDEX job_features_of_scope ON job_features (op, device_class, features_version, created_at, job);

CREATE TABLE trained (
    id               TEXT    NOT NULL PRIMARY KEY,
    op               TEXT    NOT NULL,
    device_class     TEXT    NOT NULL,
    features_version INTEGER NOT NULL,
    created_at       INTEGER NOT NULL,
    version          INTEGER NOT NULL,
    card             TEXT    NOT NULL,
    -- The model file; small enough to stand beside its card, so that both come and go together.
    file             BLOB    NOT NULL
) STRICT;
INSERT INTO trained SELECT id, op, device_class, features_version, created_at, version, card, file FROM models;

-- Every change of the model in use, so that each can be undone. A row without a model puts all of them out of use. None is ever
-- removed, nor a model that has one.
CREATE TABLE changes (
    seq          INTEGER NOT NULL PRIMARY KEY,
    op           TEXT    NOT NULL,
    device_class TEXT    NOT NULL,
    model        TEXT    REFERENCES trained (id),
    reason       TEXT    NOT NULL,
    at           INTEGER NOT NULL
) STRICT;
INSERT INTO changes SELECT seq, op, device_class, model, reason, at FROM activations;
DROP TABLE activations;
DROP TABLE models;
ALTER TABLE trained RENAME TO models;
ALTER TABLE changes RENAME TO activations;
CREATE INDEX models_newest ON models (created_at, id);
CREATE INDEX models_of_scope ON models (op, device_class, created_at, id);
CREATE INDEX activations_of_scope ON activations (op, device_class, seq);
CREATE INDEX activations_by_model ON activations (model);
