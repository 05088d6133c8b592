-- A slot of the sums of what turns have searched is one transaction's at a time, which has its lock until it ends: none waits for a row that
-- another has written. Slots went by the number of the server's process, so two that ended several jobs each could have the same, and wait
-- for each other. Who finds all of them taken has rows of its own.
CREATE OR REPLACE FUNCTION job_searched() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    own BIGINT := 4 + pg_backend_pid();
BEGIN
    FOR free IN 0..3 LOOP
        IF pg_try_advisory_xact_lock(hashtextextended(TG_TABLE_SCHEMA || ' searched', free)) THEN
            own := free;
            EXIT;
        END IF;
    END LOOP;
    INSERT INTO searched (turn, since, slot, seconds)
    VALUES (NEW.turn, clock_ms() / 300000 * 300000, own, GREATEST(NEW.search_seconds, 1.0))
    ON CONFLICT (turn, since, slot) DO UPDATE SET seconds = searched.seconds + excluded.seconds;
    RETURN NULL;
END $$;
