-- The first schema. Final once landed: later changes are migrations of their own.
--
-- Times are milliseconds since the Unix epoch. Digests are their 32 bytes. JSON is text beside the version of its
-- shape, so that a reader refuses what it does not know. Only what is searched, sorted or fenced by is a column.

CREATE TABLE matrices (
    digest         BLOB    NOT NULL PRIMARY KEY CHECK (length(digest) = 32),
    pattern_digest BLOB    NOT NULL CHECK (length(pattern_digest) = 32),
    created_at     INTEGER NOT NULL,
    version        INTEGER NOT NULL,
    facts          TEXT    NOT NULL
) STRICT;

CREATE INDEX matrices_newest ON matrices (created_at, digest);
CREATE INDEX matrices_by_pattern ON matrices (pattern_digest);

-- Plans outlive their matrix, so they keep its facts: a neighbour is found by features long after the upload is gone.
CREATE TABLE plans (
    id             TEXT    NOT NULL PRIMARY KEY,
    pattern_digest BLOB    NOT NULL CHECK (length(pattern_digest) = 32),
    problem        TEXT    NOT NULL,
    device_class   TEXT    NOT NULL,
    l2_policy      TEXT    NOT NULL,
    matrix         BLOB    NOT NULL CHECK (length(matrix) = 32),
    created_at     INTEGER NOT NULL,
    version        INTEGER NOT NULL,
    body           TEXT    NOT NULL,
    facts_version  INTEGER NOT NULL,
    facts          TEXT    NOT NULL
) STRICT;

CREATE INDEX plans_by_key ON plans (pattern_digest, problem, device_class, l2_policy, created_at, id);
CREATE INDEX plans_by_problem ON plans (problem, device_class, l2_policy, created_at, id);
CREATE INDEX plans_by_matrix ON plans (matrix);

-- No foreign key to matrices: a finished job outlives its matrix. That a live one keeps it is checked on deletion.
CREATE TABLE jobs (
    id               TEXT    NOT NULL PRIMARY KEY,
    matrix           BLOB    NOT NULL CHECK (length(matrix) = 32),
    device           TEXT    NOT NULL,
    version          INTEGER NOT NULL,
    request          TEXT    NOT NULL,
    dedup_key        TEXT    NOT NULL,
    state            TEXT    NOT NULL CHECK (state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')),
    stage            TEXT    NOT NULL,
    done             INTEGER NOT NULL DEFAULT 0,
    total            INTEGER NOT NULL DEFAULT 0,
    best             TEXT,
    plan             TEXT    REFERENCES plans (id),
    stopped_by       TEXT,
    error            TEXT,
    attempts         INTEGER NOT NULL DEFAULT 0,
    search_seconds   REAL    NOT NULL DEFAULT 0,
    created_at       INTEGER NOT NULL,
    started_at       INTEGER,
    finished_at      INTEGER,
    cancel_requested INTEGER NOT NULL DEFAULT 0 CHECK (cancel_requested IN (0, 1)),
    -- The lease: who, since which claim, until when. The epoch grows with every claim and never falls.
    owner            TEXT,
    epoch            INTEGER NOT NULL DEFAULT 0,
    lease_until      INTEGER,
    -- Number of the job's newest event; raised in the transaction that writes the event, so numbers have no gaps.
    last_seq         INTEGER NOT NULL DEFAULT 0,
    CHECK ((state = 'running') = (owner IS NOT NULL)),
    CHECK ((state = 'running') = (lease_until IS NOT NULL)),
    CHECK ((state IN ('queued', 'running')) = (finished_at IS NULL)),
    -- A queued job has no worker to ask; it is cancelled at once instead.
    CHECK (state <> 'queued' OR cancel_requested = 0)
) STRICT;

-- At most one live job a question. One that was asked to stop no longer answers it: its successor may queue.
CREATE UNIQUE INDEX jobs_one_live ON jobs (dedup_key)
    WHERE state IN ('queued', 'running') AND cancel_requested = 0;
CREATE INDEX jobs_claimable ON jobs (device, created_at, id) WHERE state IN ('queued', 'running');
CREATE INDEX jobs_newest ON jobs (created_at, id);
CREATE INDEX jobs_by_state ON jobs (state, created_at, id);
CREATE INDEX jobs_by_matrix ON jobs (matrix, created_at, id);

CREATE TABLE idempotency_keys (
    key        TEXT    NOT NULL PRIMARY KEY,
    request    BLOB    NOT NULL CHECK (length(request) = 32),
    job        TEXT    NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    created_at INTEGER NOT NULL
) STRICT;

CREATE INDEX idempotency_keys_oldest ON idempotency_keys (created_at);
CREATE INDEX idempotency_keys_by_job ON idempotency_keys (job);

CREATE TABLE trials (
    job          TEXT    NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    ordinal      INTEGER NOT NULL,
    candidate_id TEXT    NOT NULL,
    state        TEXT    NOT NULL,
    version      INTEGER NOT NULL,
    body         TEXT    NOT NULL,
    PRIMARY KEY (job, ordinal),
    UNIQUE (job, candidate_id)
) STRICT;

-- A trial's event points at the trial instead of repeating its samples.
CREATE TABLE events (
    job     TEXT    NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    seq     INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    version INTEGER NOT NULL,
    body    TEXT,
    trial   INTEGER,
    PRIMARY KEY (job, seq),
    FOREIGN KEY (job, trial) REFERENCES trials (job, ordinal),
    CHECK ((body IS NULL) = (trial IS NOT NULL))
) STRICT, WITHOUT ROWID;

CREATE TABLE devices (
    owner   TEXT    NOT NULL,
    id      TEXT    NOT NULL,
    seen_at INTEGER NOT NULL,
    version INTEGER NOT NULL,
    body    TEXT    NOT NULL,
    PRIMARY KEY (owner, id)
) STRICT, WITHOUT ROWID;

CREATE TABLE quarantine (
    device_class  TEXT    NOT NULL,
    kernel_digest BLOB    NOT NULL CHECK (length(kernel_digest) = 32),
    candidate_id  TEXT    NOT NULL,
    version       INTEGER NOT NULL,
    candidate     TEXT    NOT NULL,
    reason        TEXT    NOT NULL,
    at            INTEGER NOT NULL,
    PRIMARY KEY (device_class, kernel_digest, candidate_id)
) STRICT, WITHOUT ROWID;

-- Grows whenever an answer to a lookup may have changed, whichever process changed it.
CREATE TABLE revision (
    only  INTEGER NOT NULL PRIMARY KEY CHECK (only = 1),
    value INTEGER NOT NULL
) STRICT;

INSERT INTO revision (only, value) VALUES (1, 1);
