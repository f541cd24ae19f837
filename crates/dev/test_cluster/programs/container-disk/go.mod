module ringloom.test/container-disk

go 1.23.0
