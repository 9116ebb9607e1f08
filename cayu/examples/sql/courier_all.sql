SELECT number, recipient FROM parcels ORDER BY number
