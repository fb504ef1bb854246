//! Fusion of linear maps into one product: the same input, contiguous outputs, and contiguous weights and biases.

use std::collections::{BTreeMap, BTreeSet};

use crate::flow::group_by;
use crate::params::ParamId;
use crate::program::{Linear, Map, Norm, Op, Program, Slice};

/// One product, of one linear map or several.
#[derive(Clone)]
pub(super) struct FusedLinear {
    pub x: Slice,
    pub y: Slice,
    /// Parameter offset of the weights `[y.cols, x.cols]`.
    pub weight: usize,
    /// Parameter offset of the biases.
    pub bias: Option<usize>,
    pub residual: Option<Slice>,
    pub norm: Option<Norm>,
    members: Vec<ParamId>,
}

impl FusedLinear {
    fn one(program: &Program, map: &Map) -> Self {
        let offset = |p: ParamId| program.params.spec(p).offset;
        FusedLinear {
            x: map.x,
            y: map.y,
            weight: offset(map.weight),
            bias: map.bias.map(offset),
            residual: map.residual,
            norm: map.norm,
            members: vec![map.weight],
        }
    }

    /// Fuses the next map of the same input, if possible.
    fn fuse(&mut self, next: &FusedLinear) -> bool {
        let plain = |j: &FusedLinear| j.residual.is_none() && j.norm.is_none();
        let biases = match (self.bias, next.bias) {
            (None, None) => true,
            (Some(a), Some(b)) => a + self.y.cols == b,
            _ => false,
        };
        let follows = self.y.value == next.y.value
            && self.y.col + self.y.cols == next.y.col
            && self.weight + self.y.cols * self.x.cols == next.weight;
        let fits = plain(self) && plain(next) && biases && follows;
        if fits {
            self.y.cols += next.y.cols;
            self.members.extend(&next.members);
        }
        fits
    }
}

/// The products of an operation; maps with a weight in `unfused` stay separate.
pub(super) fn fuse_linears(program: &Program, op: &Linear, unfused: &BTreeSet<ParamId>) -> Vec<FusedLinear> {
    let mut all: Vec<FusedLinear> = Vec::new();
    for (_, maps) in group_by(op.maps.iter().map(|m| m.x)) {
        let begin = all.len();
        for &m in &maps {
            let next = FusedLinear::one(program, &op.maps[m]);
            let unfusable = |j: &FusedLinear| j.members.iter().any(|w| unfused.contains(w));
            let fused =
                all[begin..].last_mut().is_some_and(|last| !unfusable(last) && !unfusable(&next) && last.fuse(&next));
            if !fused {
                all.push(next);
            }
        }
    }
    all
}

/// Weights that must stay separate: a weight has one transposed copy, so all its uses must be fused alike.
pub(super) fn unfusable_weights(program: &Program) -> BTreeSet<ParamId> {
    let mut unfused = BTreeSet::new();
    loop {
        let mut groups: BTreeMap<ParamId, Vec<ParamId>> = BTreeMap::new();
        let before = unfused.len();
        for op in &program.ops {
            let Op::Linear(l) = op else { continue };
            for j in fuse_linears(program, l, &unfused) {
                for &w in &j.members {
                    let known = groups.entry(w).or_insert_with(|| j.members.clone());
                    if *known != j.members {
                        unfused.extend(known.iter().chain(&j.members).copied());
                    }
                }
            }
        }
        if unfused.len() == before {
            return unfused;
        }
    }
}
