-- part: refuse_indivisible_tables
  IF array_position(filters, NULL) IS NOT NULL THEN
    RAISE EXCEPTION '% cannot be divided into shards by the ordering key', tables[array_position(filters, NULL)]
      USING ERRCODE = 'WR001',
            HINT = 'It lacks a column of the key, or a column is generated or of a type that no row filter '
                   'turns into text; text, numbers, uuid and boolean will do.';
  END IF;
