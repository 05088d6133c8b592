//! Roads and meshes: symmetric, of small degree, joined, and numbered without order but near.

use super::generate;
use crate::sparse::Csr;
use crate::sparse::features::facts;

/// Vertices that can be reached from the first.
fn reached(graph: &Csr) -> usize {
    let (mut seen, mut open) = (vec![false; graph.rows()], vec![0]);
    seen[0] = true;
    while let Some(vertex) = open.pop() {
        for &other in graph.row(vertex).0 {
            if !std::mem::replace(&mut seen[other as usize], true) {
                open.push(other as usize);
            }
        }
    }
    seen.iter().filter(|seen| **seen).count()
}

fn least(graph: &Csr) -> usize {
    (0..graph.rows()).map(|row| graph.row_nnz(row)).min().unwrap()
}

#[test]
fn roads_join_all_places_with_few_neighbours() {
    let road = generate("road:nx=150,ny=101,seed=7");
    let all = facts(&road, None);
    assert!(all.symmetric && !all.has_full_diagonal);
    assert_eq!(reached(&road), 150 * 101);
    let degrees = all.features.row_nnz;
    assert_eq!((least(&road), degrees.max), (1, 4));
    assert!((2.3..2.5).contains(&degrees.mean), "{degrees:?}");
    assert_eq!(generate("road:nx=9,ny=1").nnz(), 16);
    assert_eq!(generate("road:nx=1,ny=9").nnz(), 16);
    assert_eq!(generate("road:nx=1,ny=1").nnz(), 0);
}

#[test]
fn meshes_are_triangulations() {
    let mesh = generate("mesh:nx=70,ny=90,seed=7");
    let all = facts(&mesh, None);
    assert!(all.symmetric);
    // Edges along both axes, and one a cell.
    let edges = 69 * 90 + 70 * 89 + 69 * 89;
    assert_eq!(mesh.nnz(), 2 * edges);
    assert_eq!(reached(&mesh), 70 * 90);
    let degrees = all.features.row_nnz;
    assert_eq!((least(&mesh), degrees.max), (2, 8));
}

#[test]
fn numbers_are_near_and_without_order() {
    let mesh = generate("mesh:nx=320,ny=64,seed=1");
    let far = |row: usize| {
        let tile = |number: usize| number / 1024;
        mesh.row(row).0.iter().filter(|&&other| tile(other as usize) != tile(row)).count()
    };
    // Of a tile of 32 x 32 points only those at its sides have neighbours in another.
    let across: usize = (0..mesh.rows()).map(far).sum();
    assert!(across * 10 < mesh.nnz(), "{across} of {}", mesh.nnz());
    let apart =
        |row: usize| mesh.row(row).0.iter().map(|&other| row.abs_diff(other as usize)).min();
    let mean: usize = (0..mesh.rows()).filter_map(apart).sum::<usize>() / mesh.rows();
    assert!((40..400).contains(&mean), "{mean}");
}
