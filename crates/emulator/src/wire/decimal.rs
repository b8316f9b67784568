//! Numbers as decimal text, such as message ids.

/// A number as decimal text, without an allocation.
pub(crate) struct Decimal {
    digits: [u8; 20],
    start: usize,
}

impl Decimal {
    pub(crate) fn of(value: u64) -> Self {
        let mut digits = [b'0'; 20];
        let mut start = digits.len();
        let mut rest = value;
        loop {
            start -= 1;
            digits[start] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
            rest /= 10;
            if rest == 0 {
                return Self { digits, start };
            }
        }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.digits[self.start..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_print_as_decimals() {
        for value in [0, 7, 10, 1_234_567, u64::MAX] {
            assert_eq!(Decimal::of(value).as_bytes(), value.to_string().as_bytes());
        }
    }
}
