//! The sparsity picture of a matrix: a PNG in which darker pixels contain more entries, on a logarithmic scale.

use super::Csr;
use rayon::prelude::*;

/// Largest side of a picture, in pixels.
pub const MAX_SIZE: u32 = 2048;

/// The picture could not be encoded.
#[derive(Debug, thiserror::Error)]
#[error("the picture could not be encoded: {0}")]
pub struct SpyError(#[from] png::EncodingError);

/// A greyscale PNG with the aspect ratio of the matrix, whose longer side is `size` pixels (clamped to 1..=2048). White
/// means empty; if the matrix has fewer rows or columns than the picture has pixels, each entry fills several.
pub fn png(matrix: &Csr, size: u32) -> Result<Vec<u8>, SpyError> {
    let size = size.clamp(1, MAX_SIZE) as usize;
    let longest = matrix.rows().max(matrix.cols()).max(1);
    let side = |length: usize| (size * length).div_ceil(longest).max(1);
    let (width, height) = (side(matrix.cols()), side(matrix.rows()));
    let pixels = shade(matrix, width, height);

    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width as u32, height as u32);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&pixels)?;
    writer.finish()?;
    Ok(file)
}

/// One byte per pixel, 255 for white.
fn shade(matrix: &Csr, width: usize, height: usize) -> Vec<u8> {
    let mut pixels = vec![255u8; width * height];
    if matrix.nnz() == 0 {
        return pixels;
    }
    let (grid_width, grid_height) = (width.min(matrix.cols()), height.min(matrix.rows()));
    let mut counts = vec![0u32; grid_width * grid_height];
    // Cell y contains the rows r with r * grid_height / rows == y.
    counts.par_chunks_mut(grid_width).enumerate().for_each(|(y, line)| {
        let first = |y: usize| (y * matrix.rows()).div_ceil(grid_height);
        let entries = matrix.indptr()[first(y)]..matrix.indptr()[first(y + 1)];
        for &col in &matrix.indices()[entries] {
            let cell = &mut line[col as usize * grid_width / matrix.cols()];
            *cell = cell.saturating_add(1);
        }
    });
    let densest = counts.iter().copied().max().unwrap_or(1);
    let darkest = f64::from(densest).ln_1p();
    pixels.par_chunks_mut(width).enumerate().for_each(|(y, line)| {
        let cells = &counts[y * grid_height / height * grid_width..][..grid_width];
        for (x, pixel) in line.iter_mut().enumerate() {
            let count = cells[x * grid_width / width];
            if count > 0 {
                // From 200, so that a single entry is visible, down to black.
                *pixel = (200.0 - 200.0 * f64::from(count).ln_1p() / darkest).round() as u8;
            }
        }
    });
    pixels
}

#[cfg(test)]
mod tests {
    use super::{png, shade};
    use crate::sparse::Csr;

    #[test]
    fn entries_are_dark_at_their_positions() {
        let matrix = Csr::new(2, 4, vec![0, 1, 2], vec![3, 0], vec![1.0, 1.0]).unwrap();
        assert_eq!(shade(&matrix, 4, 2), [255, 255, 255, 0, 0, 255, 255, 255]);
        let doubled = shade(&matrix, 8, 4);
        assert_eq!((doubled[5], doubled[6], doubled[7], doubled[8 + 7]), (255, 0, 0, 0));
        // Two rows share one line of pixels, which contains both entries.
        assert_eq!(shade(&matrix, 2, 1), [0, 0]);
    }

    #[test]
    fn respects_aspect_ratio_and_bounds() {
        let size_of = |file: &[u8]| {
            assert!(file.starts_with(b"\x89PNG\r\n\x1a\n"));
            let word = |at: usize| {
                u32::from_be_bytes([file[at], file[at + 1], file[at + 2], file[at + 3]])
            };
            (word(16), word(20))
        };
        let wide = Csr::new(1, 1000, vec![0, 1], vec![999], vec![1.0]).unwrap();
        assert_eq!(size_of(&png(&wide, 100).unwrap()), (100, 1));
        assert_eq!(size_of(&png(&wide, 9999).unwrap()), (2048, 3));
        let empty = Csr::new(0, 0, vec![0], vec![], vec![]).unwrap();
        assert_eq!(size_of(&png(&empty, 0).unwrap()), (1, 1));
    }
}
