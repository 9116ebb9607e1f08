SELECT number FROM parcels WHERE reference = ? ORDER BY number
