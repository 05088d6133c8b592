-- The schema in PostgreSQL: what the migrations of SQLite have made by number 23, with the names of those. Final once landed.
--
-- Times are milliseconds since the Unix epoch. Digests are their 32 bytes. JSON is text beside the version of its shape, so that a
-- reader refuses what it does not know, and a damaged row can still be read past. Flags are 0 and 1, as they are in the terms of partial
-- indexes that statements repeat. Text is compared by its bytes, as SQLite does and as cursors need.

-- The functions of SQLite that the store's statements use. None reads a table, and PostgreSQL puts their definitions in
-- their place, for which they must not be stricter than what they call.
CREATE FUNCTION json_part(body TEXT, path TEXT) RETURNS TEXT LANGUAGE SQL IMMUTABLE PARALLEL SAFE AS
$$ SELECT CAST(body AS json) #>> string_to_array(substr(path, 3), '.') $$;
CREATE FUNCTION json_element(body TEXT, place INTEGER) RETURNS TEXT LANGUAGE SQL IMMUTABLE PARALLEL SAFE AS
$$ SELECT CAST(body AS json) ->> place $$;
CREATE FUNCTION json_text(body TEXT, path TEXT) RETURNS TEXT LANGUAGE SQL IMMUTABLE PARALLEL SAFE AS
$$ SELECT CAST(CAST(body AS json) #> string_to_array(substr(path, 3), '.') AS text) $$;
-- `->>` takes a part out as text, `->` as JSON; a path is `$.name.name`, without quotes.
CREATE OPERATOR ->> (LEFTARG = TEXT, RIGHTARG = TEXT, FUNCTION = json_part);
CREATE OPERATOR ->> (LEFTARG = TEXT, RIGHTARG = INTEGER, FUNCTION = json_element);
CREATE OPERATOR -> (LEFTARG = TEXT, RIGHTARG = TEXT, FUNCTION = json_text);

-- The elements of an array with their places; nothing of what is no array.
CREATE FUNCTION json_each(body TEXT) RETURNS TABLE (key BIGINT, value TEXT) LANGUAGE SQL IMMUTABLE PARALLEL SAFE ROWS 20 AS
$$ SELECT place - 1, element FROM json_array_elements_text(CASE WHEN json_typeof(CAST(body AS json)) = 'array' THEN CAST(body AS json) END)
   WITH ORDINALITY elements (element, place) $$;
CREATE FUNCTION json_each(body TEXT, path TEXT) RETURNS TABLE (key BIGINT, value TEXT) LANGUAGE SQL IMMUTABLE PARALLEL SAFE ROWS 5 AS
$$ SELECT * FROM json_each(json_text(body, path)) $$;

-- The text with one part replaced; as it is if there is no such part.
CREATE FUNCTION json_replace(body TEXT, path TEXT, part JSON) RETURNS TEXT LANGUAGE SQL IMMUTABLE PARALLEL SAFE AS
$$ SELECT CASE WHEN json_text(body, path) IS NULL THEN body ELSE
       CAST(jsonb_set(CAST(body AS jsonb), string_to_array(substr(path, 3), '.'), CAST(part AS jsonb), false) AS text) END $$;

-- Its EXCEPTION needs a subtransaction, which parallel plans may not have.
CREATE FUNCTION json_valid(body TEXT) RETURNS BOOLEAN LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL UNSAFE AS
$$ BEGIN PERFORM CAST(body AS json); RETURN true; EXCEPTION WHEN data_exception THEN RETURN false; END $$;

CREATE FUNCTION unhex(digits TEXT) RETURNS BYTEA LANGUAGE SQL IMMUTABLE STRICT PARALLEL SAFE AS $$ SELECT decode(digits, 'hex') $$;
CREATE FUNCTION instr(body TEXT, part TEXT) RETURNS INTEGER LANGUAGE SQL IMMUTABLE STRICT PARALLEL SAFE AS
$$ SELECT strpos(body, part) $$;
-- Of two values that are both there.
CREATE FUNCTION max(a BIGINT, b BIGINT) RETURNS BIGINT LANGUAGE SQL IMMUTABLE PARALLEL SAFE AS $$ SELECT greatest(a, b) $$;
CREATE FUNCTION max(a DOUBLE PRECISION, b DOUBLE PRECISION) RETURNS DOUBLE PRECISION LANGUAGE SQL IMMUTABLE PARALLEL SAFE AS
$$ SELECT greatest(a, b) $$;
CREATE FUNCTION min(a BIGINT, b BIGINT) RETURNS BIGINT LANGUAGE SQL IMMUTABLE PARALLEL SAFE AS $$ SELECT least(a, b) $$;

-- The time by which leases are given and expire, of this server alone. The first is read anew for each row, also for one whose lock was
-- waited for: by an earlier time, a lease that was given meanwhile would lie in the future, and be taken.
CREATE FUNCTION clock_ms() RETURNS BIGINT LANGUAGE SQL VOLATILE PARALLEL SAFE AS
$$ SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT) $$;
CREATE FUNCTION statement_ms() RETURNS BIGINT LANGUAGE SQL STABLE PARALLEL SAFE AS
$$ SELECT CAST(extract(epoch FROM statement_timestamp()) * 1000 AS BIGINT) $$;

CREATE TABLE matrices (
    digest         BYTEA  NOT NULL PRIMARY KEY CHECK (length(digest) = 32),
    pattern_digest BYTEA  NOT NULL CHECK (length(pattern_digest) = 32),
    created_at     BIGINT NOT NULL,
    version        BIGINT NOT NULL,
    facts          TEXT   NOT NULL
);

-- A matrix as one namespace has it.
CREATE TABLE holdings (
    namespace      TEXT COLLATE "C" NOT NULL,
    digest         BYTEA  NOT NULL REFERENCES matrices (digest),
    pattern_digest BYTEA  NOT NULL CHECK (length(pattern_digest) = 32),
    name           TEXT COLLATE "C",
    created_at     BIGINT NOT NULL,
    token          TEXT COLLATE "C",
    charged        BIGINT NOT NULL DEFAULT 0,
    pinned_at      BIGINT,
    PRIMARY KEY (namespace, digest)
);
-- A name may be longer than an entry of an index can be, so it is not in this one.
CREATE INDEX holdings_newest ON holdings (namespace, created_at, digest);
CREATE INDEX holdings_by_pattern ON holdings (namespace, pattern_digest);
CREATE INDEX holdings_by_token ON holdings (namespace, token, charged) WHERE token IS NOT NULL;
CREATE INDEX holdings_pinned ON holdings (namespace, pinned_at) WHERE pinned_at IS NOT NULL;
CREATE INDEX holdings_by_digest ON holdings (digest);

CREATE TABLE plans (
    id             TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    pattern_digest BYTEA    NOT NULL CHECK (length(pattern_digest) = 32),
    problem        TEXT COLLATE "C" NOT NULL,
    device_class   TEXT COLLATE "C" NOT NULL,
    l2_policy      TEXT COLLATE "C" NOT NULL,
    matrix         BYTEA    NOT NULL CHECK (length(matrix) = 32),
    created_at     BIGINT   NOT NULL,
    version        BIGINT   NOT NULL,
    body           TEXT     NOT NULL,
    facts_version  BIGINT   NOT NULL,
    facts          TEXT     NOT NULL,
    predicted      SMALLINT NOT NULL DEFAULT 0 CHECK (predicted IN (0, 1)),
    pinned_at      BIGINT,
    namespace      TEXT COLLATE "C" NOT NULL DEFAULT 'default',
    token          TEXT COLLATE "C",
    charged        BIGINT   NOT NULL DEFAULT 0
);
CREATE INDEX plans_by_key ON plans (namespace, pattern_digest, problem, device_class, l2_policy, created_at, id) WHERE predicted = 0;
CREATE INDEX plans_by_problem ON plans (namespace, problem, device_class, l2_policy, created_at, id) WHERE predicted = 0;
CREATE INDEX plans_predicted ON plans (namespace, pattern_digest, problem, device_class, l2_policy, created_at, id)
    WHERE predicted = 1;
CREATE INDEX plans_by_matrix ON plans (namespace, matrix, created_at);
CREATE INDEX plans_pinned ON plans (namespace, pinned_at) WHERE pinned_at IS NOT NULL;
CREATE INDEX plans_by_token ON plans (namespace, token, charged) WHERE token IS NOT NULL;
CREATE INDEX plans_of_tokens ON plans (pattern_digest, problem, device_class, l2_policy, created_at, id)
    WHERE predicted = 0 AND token IS NOT NULL;
CREATE INDEX plans_of_tokens_by_matrix ON plans (matrix) WHERE predicted = 0 AND token IS NOT NULL;
CREATE INDEX plans_exported ON plans (created_at, id);
CREATE INDEX plans_by_model ON plans (created_at) WHERE body ->> '$.model_error.model' IS NOT NULL;

-- The lease is renewed, the stage and the number of the newest event are written while a job runs, none of which is in an index: half of
-- each page is left for the next versions of its rows, so that these need no new entry in any index. A table of leases apart from jobs
-- would make each claim and each fence a join, for rows that finish within minutes.
CREATE TABLE jobs (
    id               TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    version          BIGINT   NOT NULL,
    request          TEXT     NOT NULL,
    dedup_key        TEXT COLLATE "C" NOT NULL,
    state            TEXT COLLATE "C" NOT NULL CHECK (state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled')),
    stage            TEXT     NOT NULL,
    done             BIGINT   NOT NULL DEFAULT 0,
    total            BIGINT   NOT NULL DEFAULT 0,
    best             TEXT,
    plan             TEXT COLLATE "C" REFERENCES plans (id),
    stopped_by       TEXT,
    error            TEXT,
    attempts         BIGINT   NOT NULL DEFAULT 0,
    search_seconds   DOUBLE PRECISION NOT NULL DEFAULT 0,
    created_at       BIGINT   NOT NULL,
    started_at       BIGINT,
    finished_at      BIGINT,
    cancel_requested SMALLINT NOT NULL DEFAULT 0 CHECK (cancel_requested IN (0, 1)),
    owner            TEXT COLLATE "C",
    epoch            BIGINT   NOT NULL DEFAULT 0,
    lease_until      BIGINT,
    last_seq         BIGINT   NOT NULL DEFAULT 0,
    follow_up        TEXT,
    kind             TEXT COLLATE "C" NOT NULL DEFAULT 'tune' CHECK (kind IN ('tune', 'train')),
    device           TEXT COLLATE "C",
    matrix           BYTEA    CHECK (length(matrix) = 32),
    detail           TEXT,
    lease_ms         BIGINT,
    token            TEXT COLLATE "C",
    namespace        TEXT COLLATE "C" NOT NULL DEFAULT 'default',
    priority         BIGINT   NOT NULL DEFAULT 0,
    imported_from    TEXT,
    imported_at      BIGINT,
    CHECK ((kind = 'tune') = (matrix IS NOT NULL) AND (kind = 'tune') = (device IS NOT NULL)),
    CHECK ((imported_at IS NULL) = (imported_from IS NULL)),
    CHECK ((state = 'running') = (owner IS NOT NULL)),
    CHECK ((state = 'running') = (lease_until IS NOT NULL)),
    CHECK ((state IN ('queued', 'running')) = (finished_at IS NULL)),
    CHECK (state <> 'queued' OR cancel_requested = 0)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE UNIQUE INDEX jobs_one_live ON jobs (dedup_key) WHERE state IN ('queued', 'running') AND cancel_requested = 0;
CREATE INDEX jobs_newest ON jobs (created_at, id);
CREATE INDEX jobs_by_plan ON jobs (plan);
-- No device is named with an empty text, which stands for those that no device claims: IS NOT DISTINCT FROM uses no index.
CREATE INDEX jobs_claimable ON jobs (kind, coalesce(device, ''), created_at, id) WHERE state IN ('queued', 'running');
-- Few among many that wait; sought for leases that have expired.
CREATE INDEX jobs_running ON jobs (kind, coalesce(device, '')) WHERE state = 'running';
CREATE INDEX jobs_trainings ON jobs (created_at, id) WHERE kind = 'train';
CREATE INDEX jobs_newest_of ON jobs (namespace, created_at, id);
CREATE INDEX jobs_by_device ON jobs (namespace, device, created_at, id);
CREATE INDEX jobs_by_device_and_state ON jobs (namespace, device, state, created_at, id);
CREATE INDEX jobs_by_matrix ON jobs (namespace, matrix, created_at, id);
CREATE INDEX jobs_by_state ON jobs (namespace, state, created_at, id, kind);
CREATE INDEX jobs_by_token ON jobs (namespace, token, finished_at);

CREATE TABLE idempotency_keys (
    -- In the order in which they came; SQLite numbers rows so by itself.
    rowid      BIGINT NOT NULL GENERATED BY DEFAULT AS IDENTITY,
    key        TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    request    BYTEA  NOT NULL CHECK (length(request) = 32),
    job        TEXT COLLATE "C" NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    created_at BIGINT NOT NULL
);
CREATE INDEX idempotency_keys_oldest ON idempotency_keys (created_at);
CREATE INDEX idempotency_keys_by_job ON idempotency_keys (job, rowid);

-- No foreign keys from trials and events: each insertion would lock the job's row once more, which its writer has locked already. What
-- removes a job removes these first, and the triggers below do where it was forgotten.
CREATE TABLE trials (
    job          TEXT COLLATE "C" NOT NULL,
    ordinal      BIGINT NOT NULL,
    candidate_id TEXT COLLATE "C" NOT NULL,
    state        TEXT COLLATE "C" NOT NULL,
    version      BIGINT NOT NULL,
    body         TEXT   NOT NULL,
    features     BYTEA,
    PRIMARY KEY (job, ordinal),
    UNIQUE (job, candidate_id)
) WITH (autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000);
CREATE INDEX trials_tried ON trials (job, ordinal, state) WHERE state <> 'pruned';

CREATE TABLE events (
    job     TEXT COLLATE "C" NOT NULL,
    seq     BIGINT NOT NULL,
    at      BIGINT NOT NULL,
    version BIGINT NOT NULL,
    body    TEXT,
    trial   BIGINT,
    PRIMARY KEY (job, seq),
    CHECK ((body IS NULL) = (trial IS NOT NULL))
) WITH (autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000);
CREATE INDEX events_told ON events (job, seq) WHERE trial IS NULL AND body ->> '$.event' <> 'job';

CREATE TABLE job_features (
    job              TEXT COLLATE "C" NOT NULL PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
    op               TEXT COLLATE "C" NOT NULL,
    device_class     TEXT COLLATE "C" NOT NULL,
    features_version BIGINT NOT NULL,
    problem          TEXT   NOT NULL,
    matrix           BYTEA  NOT NULL CHECK (length(matrix) = 32),
    pattern_digest   BYTEA  NOT NULL CHECK (length(pattern_digest) = 32),
    matrix_name      TEXT,
    shared           BYTEA  NOT NULL,
    created_at       BIGINT NOT NULL,
    described        BIGINT NOT NULL DEFAULT 0
) WITH (fillfactor = 80);
CREATE INDEX job_features_of_scope ON job_features (op, device_class, features_version, created_at, job);

CREATE FUNCTION job_gone() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM events WHERE job = OLD.id;
    DELETE FROM trials WHERE job = OLD.id;
    RETURN NULL;
END $$;
CREATE TRIGGER jobs_gone AFTER DELETE ON jobs FOR EACH ROW EXECUTE FUNCTION job_gone();

CREATE TABLE devices (
    owner   TEXT COLLATE "C" NOT NULL,
    id      TEXT COLLATE "C" NOT NULL,
    seen_at BIGINT NOT NULL,
    version BIGINT NOT NULL,
    body    TEXT   NOT NULL,
    PRIMARY KEY (owner, id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);

CREATE TABLE quarantine (
    device_class  TEXT COLLATE "C" NOT NULL,
    kernel_digest BYTEA  NOT NULL CHECK (length(kernel_digest) = 32),
    candidate_id  TEXT COLLATE "C" NOT NULL,
    version       BIGINT NOT NULL,
    candidate     TEXT   NOT NULL,
    reason        TEXT   NOT NULL,
    at            BIGINT NOT NULL,
    PRIMARY KEY (device_class, kernel_digest, candidate_id)
);
CREATE INDEX quarantine_newest ON quarantine (at, device_class, kernel_digest, candidate_id);
CREATE INDEX quarantine_newest_of_class ON quarantine (device_class, at, kernel_digest, candidate_id);

CREATE TABLE kernel_figures (
    device_class TEXT COLLATE "C" NOT NULL,
    kernel       BYTEA  NOT NULL CHECK (length(kernel) = 32),
    registers    BIGINT NOT NULL CHECK (registers >= 0),
    local_bytes  BIGINT NOT NULL CHECK (local_bytes >= 0),
    learnt_at    BIGINT NOT NULL,
    seen_at      BIGINT NOT NULL,
    PRIMARY KEY (device_class, kernel)
);
CREATE INDEX kernel_figures_oldest ON kernel_figures (device_class, seen_at, kernel);

CREATE TABLE models (
    id               TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    op               TEXT COLLATE "C" NOT NULL,
    device_class     TEXT COLLATE "C" NOT NULL,
    features_version BIGINT NOT NULL,
    created_at       BIGINT NOT NULL,
    version          BIGINT NOT NULL,
    card             TEXT   NOT NULL,
    file             BYTEA  NOT NULL
);
CREATE INDEX models_newest ON models (created_at, id);
CREATE INDEX models_of_scope ON models (op, device_class, created_at, id);

CREATE TABLE activations (
    seq          BIGINT NOT NULL GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    op           TEXT COLLATE "C" NOT NULL,
    device_class TEXT COLLATE "C" NOT NULL,
    model        TEXT COLLATE "C" REFERENCES models (id),
    reason       TEXT   NOT NULL,
    at           BIGINT NOT NULL
);
CREATE INDEX activations_of_scope ON activations (op, device_class, seq);
CREATE INDEX activations_by_model ON activations (model);

CREATE TABLE bundles (
    plan           TEXT COLLATE "C" NOT NULL REFERENCES plans (id) ON DELETE CASCADE,
    without_values SMALLINT NOT NULL CHECK (without_values IN (0, 1)),
    blob           BYTEA    NOT NULL CHECK (length(blob) = 32),
    bytes          BIGINT   NOT NULL,
    sha256         BYTEA    NOT NULL CHECK (length(sha256) = 32),
    imported       SMALLINT NOT NULL CHECK (imported IN (0, 1)),
    created_at     BIGINT   NOT NULL,
    PRIMARY KEY (plan, without_values)
);
CREATE INDEX bundles_by_age ON bundles (created_at) WHERE imported = 0;

CREATE TABLE drift (
    plan        TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    uses        BIGINT NOT NULL DEFAULT 0,
    used_at     BIGINT,
    checked_at  BIGINT,
    verdict     TEXT,
    why         TEXT,
    median_us   DOUBLE PRECISION,
    vendor_us   DOUBLE PRECISION,
    renewed_at  BIGINT,
    renewed_for TEXT,
    CHECK ((checked_at IS NULL) = (verdict IS NULL) AND (renewed_at IS NULL) = (renewed_for IS NULL))
);
CREATE INDEX drift_checked ON drift (checked_at) WHERE checked_at IS NOT NULL;
CREATE INDEX drift_renewed ON drift (renewed_at) WHERE renewed_at IS NOT NULL;
CREATE INDEX drift_used ON drift (uses) WHERE uses > 0;

CREATE FUNCTION plan_gone() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM drift WHERE plan = OLD.id;
    RETURN NULL;
END $$;
CREATE TRIGGER plans_gone AFTER DELETE ON plans FOR EACH ROW EXECUTE FUNCTION plan_gone();

CREATE TABLE revision (
    "only" SMALLINT NOT NULL PRIMARY KEY CHECK ("only" = 1),
    value  BIGINT   NOT NULL
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50);
INSERT INTO revision ("only", value) VALUES (1, 1);

CREATE TABLE store_id (
    "only" SMALLINT NOT NULL PRIMARY KEY CHECK ("only" = 1),
    id     TEXT     NOT NULL CHECK (length(id) = 32)
) WITH (fillfactor = 10);
INSERT INTO store_id ("only", id) VALUES (1, replace(CAST(gen_random_uuid() AS text), '-', ''));

CREATE TABLE tokens (
    hash         BYTEA    NOT NULL PRIMARY KEY CHECK (length(hash) = 32),
    name         TEXT COLLATE "C" NOT NULL,
    scopes       TEXT     NOT NULL,
    namespace    TEXT COLLATE "C" NOT NULL,
    created_at   BIGINT   NOT NULL,
    expires_at   BIGINT,
    revoked_at   BIGINT,
    limits       TEXT     NOT NULL DEFAULT '{}',
    share_plans  SMALLINT NOT NULL DEFAULT 0 CHECK (share_plans IN (0, 1)),
    last_used_at BIGINT
);
CREATE INDEX tokens_newest ON tokens (created_at, hash);
CREATE UNIQUE INDEX tokens_in_force ON tokens (namespace, name) WHERE revoked_at IS NULL;

CREATE TABLE tokens_revision (
    "only" SMALLINT NOT NULL PRIMARY KEY CHECK ("only" = 1),
    value  BIGINT   NOT NULL
);
INSERT INTO tokens_revision ("only", value) VALUES (1, 1);

CREATE TABLE audit (
    seq        BIGINT NOT NULL GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    at         BIGINT NOT NULL,
    token      TEXT COLLATE "C",
    namespace  TEXT COLLATE "C" NOT NULL,
    peer       TEXT,
    request    TEXT,
    action     TEXT   NOT NULL,
    subject    TEXT,
    status     BIGINT NOT NULL
);
CREATE INDEX audit_by_token ON audit (namespace, token, seq);

CREATE TABLE webhooks (
    id           TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    url          TEXT   NOT NULL,
    secret       TEXT   NOT NULL,
    states       TEXT   NOT NULL,
    created_at   BIGINT NOT NULL,
    namespace    TEXT COLLATE "C" NOT NULL DEFAULT 'default',
    failures     BIGINT NOT NULL DEFAULT 0,
    paused_until BIGINT NOT NULL DEFAULT 0
);

CREATE TABLE deliveries (
    id         TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    hook       TEXT COLLATE "C" NOT NULL REFERENCES webhooks (id) ON DELETE CASCADE,
    job        TEXT COLLATE "C" NOT NULL,
    body       TEXT   NOT NULL,
    state      TEXT COLLATE "C" NOT NULL CHECK (state IN ('pending', 'delivered', 'failed')),
    attempts   BIGINT NOT NULL DEFAULT 0,
    next_at    BIGINT NOT NULL,
    status     BIGINT,
    error      TEXT,
    created_at BIGINT NOT NULL,
    ended_at   BIGINT
);
CREATE INDEX deliveries_of_hook ON deliveries (hook, created_at, id);
CREATE INDEX deliveries_ended ON deliveries (ended_at) WHERE state <> 'pending';
CREATE INDEX deliveries_due ON deliveries (hook, next_at, id) WHERE state = 'pending';
CREATE INDEX deliveries_waiting ON deliveries (hook, created_at) WHERE state = 'pending';

-- Whatever ends a job also queues what is to be told of it, in the same transaction.
CREATE FUNCTION job_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO deliveries (id, hook, job, body, state, next_at, created_at)
    SELECT replace(CAST(gen_random_uuid() AS text), '-', ''), webhooks.id, NEW.id,
        CAST(json_build_object(
            'type', 'job.ended',
            'job', json_build_object(
                'id', NEW.id, 'kind', NEW.kind, 'state', NEW.state, 'plan', NEW.plan,
                'matrix', encode(NEW.matrix, 'hex'), 'device', NEW.device, 'error', NEW.error,
                'created_at', to_char(to_timestamp(NEW.created_at / 1000.0) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
                'finished_at', to_char(to_timestamp(NEW.finished_at / 1000.0) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')))
            AS text),
        'pending', NEW.finished_at, NEW.finished_at
    FROM webhooks WHERE webhooks.namespace = NEW.namespace AND strpos(webhooks.states, ',' || NEW.state || ',') > 0;
    RETURN NULL;
END $$;
CREATE TRIGGER jobs_ended AFTER UPDATE OF state ON jobs FOR EACH ROW
    WHEN (NEW.state IN ('succeeded', 'failed', 'cancelled') AND OLD.state IN ('queued', 'running'))
    EXECUTE FUNCTION job_ended();
