-- What migration 60 of SQLite makes.
ALTER TABLE quarantine ADD COLUMN scope TEXT NOT NULL DEFAULT 'class';
CREATE TABLE witnesses (
    device_class   TEXT COLLATE "C" NOT NULL,
    kernel_digest  BYTEA  NOT NULL CHECK (length(kernel_digest) = 32),
    candidate_id   TEXT COLLATE "C" NOT NULL,
    namespace      TEXT COLLATE "C" NOT NULL,
    pattern_digest BYTEA  NOT NULL CHECK (length(pattern_digest) = 32),
    at             BIGINT NOT NULL,
    PRIMARY KEY (device_class, kernel_digest, candidate_id, namespace, pattern_digest)
);
