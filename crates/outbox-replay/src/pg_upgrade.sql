-- name: adopt_slot
UPDATE public.app_outbox_relay
   SET system_identifier = $2, timeline = $3, settled_lsn = $4, operation = NULL,
       generation = generation + 1, updated_at = now()
 WHERE slot = $1
