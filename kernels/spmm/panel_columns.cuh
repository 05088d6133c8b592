// Row panels for column-major B and C: B is turned into rows before, and C, which the panels write by rows, into columns after.
// maps:    the steps of stage.cuh, of row_panel.cuh or panel_ways.cuh, and of unstage.cuh
// tune:    b both | ways 1 2 4 8 | m1 2 4 8 | n1 16 32 64 96 128 192 256 | vec 1 2 4 8 | unroll 2 4 | block 192 256 | order natural length similarity locality
// needs:   as row_panel; room for B and C by rows
// refuses: n other than n1 (B by rows would lie in several panels); alpha and beta (sums would be rounded between); sums of a block that
//          take more than 48 KiB
#pragma once
#include "spmm/panel_ways.cuh"
#include "spmm/unstage.cuh"
