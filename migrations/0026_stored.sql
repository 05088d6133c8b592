-- Bytes of the blobs, where several servers count them together: a bucket's, for data.max_stored_bytes. `taken` is what has been taken so far, whatever
-- was counted since; `counted_at` is when all of them were last looked at.
CREATE TABLE stored (
    only       INTEGER NOT NULL PRIMARY KEY CHECK (only = 1),
    bytes      INTEGER NOT NULL CHECK (bytes >= 0),
    taken      INTEGER NOT NULL,
    counted_at INTEGER NOT NULL
) STRICT;
INSERT INTO stored (only, bytes, taken, counted_at) VALUES (1, 0, 0, 0);
