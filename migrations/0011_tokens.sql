-- API tokens: who may do what. Only a hash of each token is kept (BLAKE3 of 256 random bits).
CREATE TABLE tokens (
    hash       BLOB    NOT NULL PRIMARY KEY CHECK (length(hash) = 32),
    name       TEXT    NOT NULL,
    scopes     TEXT    NOT NULL,
    namespace  TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER
) STRICT;

-- A name is one token's as long as it is in force; its successor may have the same.
CREATE UNIQUE INDEX tokens_in_force ON tokens (name) WHERE revoked_at IS NULL;
CREATE INDEX tokens_newest ON tokens (created_at, hash);

-- Grows with every change of the tokens, whichever process made it, so that the others read them again.
CREATE TABLE tokens_revision (
    only  INTEGER NOT NULL PRIMARY KEY CHECK (only = 1),
    value INTEGER NOT NULL
) STRICT;
INSERT INTO tokens_revision (only, value) VALUES (1, 1);

-- What was changed, by whom and from where; the oldest rows go when there are too many.
CREATE TABLE audit (
    seq        INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    at         INTEGER NOT NULL,
    token      TEXT,
    namespace  TEXT    NOT NULL,
    peer       TEXT,
    request    TEXT,
    action     TEXT    NOT NULL,
    subject    TEXT,
    status     INTEGER NOT NULL
) STRICT;
