-- Where the store goes on, once it was copied to another database: what is left here is not to be opened by mistake.
ALTER TABLE store_id ADD COLUMN moved_to TEXT;
