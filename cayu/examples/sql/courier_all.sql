SELECT number, recipient, reference FROM parcels ORDER BY number
