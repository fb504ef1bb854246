//! Elements of sets: rows of one width, decoded once and kept in memory.

/// Rows of one width. Bits and bytes become floats when they enter a batch.
#[derive(Clone, Debug, PartialEq)]
pub struct Items {
    width: usize,
    values: Values,
}

#[derive(Clone, Debug, PartialEq)]
enum Values {
    /// Most significant bit first. Each row starts at a byte.
    Bits(Vec<u8>),
    Bytes(Vec<u8>),
    Floats(Vec<f32>),
}

/// The bits of each byte as floats. A table lookup is faster than eight shifts.
static BITS_OF_BYTE: [[f32; 8]; 256] = {
    let mut table = [[0.0; 8]; 256];
    let mut i = 0;
    while i < 256 * 8 {
        table[i / 8][i % 8] = (((i / 8) >> (7 - i % 8)) & 1) as f32;
        i += 1;
    }
    table
};

impl Items {
    /// Rows of floats.
    ///
    /// # Panics
    /// Where the number of values is not a multiple of the width of a row.
    pub fn floats(width: usize, values: Vec<f32>) -> Self {
        assert!(width > 0 && values.len().is_multiple_of(width), "values fill rows");
        Items { width, values: Values::Floats(values) }
    }

    /// Rows of bytes. A byte b is the float b/255.
    ///
    /// # Panics
    /// Where the number of values is not a multiple of the width of a row.
    pub fn bytes(width: usize, values: Vec<u8>) -> Self {
        assert!(width > 0 && values.len().is_multiple_of(width), "values fill rows");
        Items { width, values: Values::Bytes(values) }
    }

    /// Rows of bits, the most significant bit of a byte first. Each row starts at a byte.
    ///
    /// # Panics
    /// Where the number of values is not a multiple of the width of a row.
    pub fn bits(width: usize, values: Vec<u8>) -> Self {
        assert!(width > 0 && values.len().is_multiple_of(width.div_ceil(8)), "values fill rows");
        Items { width, values: Values::Bits(values) }
    }

    /// Width of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        match &self.values {
            Values::Bits(v) => v.len() / self.width.div_ceil(8),
            Values::Bytes(v) => v.len() / self.width,
            Values::Floats(v) => v.len() / self.width,
        }
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends a row as floats.
    ///
    /// ```
    /// let items = setwise_lab::datasets::Items::bytes(2, vec![0, 255, 51, 0]);
    /// let mut row = Vec::new();
    /// items.append(1, &mut row);
    /// assert_eq!(row, [0.2, 0.0]);
    /// ```
    ///
    /// # Panics
    /// Where there is no such row.
    pub fn append(&self, item: usize, out: &mut Vec<f32>) {
        let row = item * self.width..(item + 1) * self.width;
        match &self.values {
            Values::Floats(v) => out.extend_from_slice(&v[row]),
            Values::Bytes(v) => out.extend(v[row].iter().map(|&b| f32::from(b) / 255.0)),
            Values::Bits(v) => {
                let bytes = self.width.div_ceil(8);
                let end = out.len() + self.width;
                for &byte in &v[item * bytes..(item + 1) * bytes] {
                    out.extend_from_slice(&BITS_OF_BYTE[byte as usize]);
                }
                out.truncate(end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_become_floats_with_the_most_significant_bit_first() {
        let items = Items::bits(10, vec![0b1000_0001, 0b0100_0000, 0, 0b1111_1111]);
        assert_eq!(items.len(), 2);
        let mut rows = Vec::new();
        (0..2).for_each(|i| items.append(i, &mut rows));
        assert_eq!(rows[..10], [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0]);
        assert_eq!(rows[10..], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0]);
    }
}
