// SPDX-License-Identifier: Apache-2.0
#pragma once
// The copies of a parameter that several pipeline stages have stay equal: they
// start from the values of the first one and are updated with the sum of their
// gradients (find_tied_parameters()).

namespace tessera::sharding {

class Pager;

/// Copies the values of the first copies to the others. Collective over the
/// pipeline stages.
void copy_tied_values(Pager& pager);

/// Sums the settled gradients of all copies, once per step: later calls do
/// nothing. Collective over the pipeline stages.
void add_tied_gradients(Pager& pager);

} // namespace tessera::sharding
