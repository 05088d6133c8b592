// Row panels for column-major B and C: B is turned into rows before, and C, which the panels write by rows, into columns after.
// maps:    the steps of stage.cuh, of panel_ways.cuh, and of unstage.cuh
// tune:    b both | ways 1 2 4 8 | m1 2 4 8 | n1 16 32 64 128 256 | vec 1 2 4 8 | unroll 2 4 8 | block 256 | order natural length similarity locality
// needs:   as panel_ways; room for B and C by rows
// refuses: n other than n1 (B by rows would lie in several panels); alpha and beta (sums would be rounded between); what
//          panel_ways refuses, such as f64 at n = 256
#pragma once
#include "spmm/panel_ways.cuh"
#include "spmm/unstage.cuh"
