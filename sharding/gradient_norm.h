// SPDX-License-Identifier: Apache-2.0
#pragma once
// Norms and limits of all of a pager's gradients, from this rank's shards.

#include "tessera/sharding/pager.h"

namespace tessera {

/// The global p-norm of the settled gradients: every element of every gradient
/// counts once, whatever rank it lies on. Collective; blocks.
/// @param p above 0, infinity for the largest magnitude.
/// @return the same on all ranks; NaN or infinity when a gradient has one.
double gradient_norm(Pager& pager, double p);

/// True when every element of every settled gradient is finite, on all ranks.
/// Collective; blocks.
bool gradients_are_finite(Pager& pager);

/// Limits every element of the settled gradients to [-limit, limit].
/// Not collective.
void clamp_gradients(Pager& pager, double limit);

} // namespace tessera
