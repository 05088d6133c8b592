-- Names this store. The folder of its blobs has the same name, so that neither is used with another's.
CREATE TABLE store_id (
    only INTEGER NOT NULL PRIMARY KEY CHECK (only = 1),
    id   TEXT    NOT NULL CHECK (length(id) = 32)
) STRICT;
INSERT INTO store_id (only, id) VALUES (1, lower(hex(randomblob(16))));
