// SPDX-License-Identifier: Apache-2.0
#pragma once
// The copies of a parameter that several pipeline stages have stay equal: they
// start from the values of the first one and are updated with the sum of their
// gradients (find_tied_parameters()).

#include <string>

namespace tessera::sharding {

class Pager;
struct Page;

/// Copies the values of the first copies to the others. Collective over the
/// pipeline stages.
void copy_tied_values(Pager& pager);

/// Sums the settled gradients of all copies, once per step: later calls do
/// nothing. Collective over the pipeline stages.
/// @throws tessera::Error on all of them if they have not passed as many
///   gradients of a parameter to Engine::reduce().
void add_tied_gradients(Pager& pager);

/// The same to read them: where they were summed before, nothing is collective.
/// @param function that reads, with what it reads, for errors.
void add_tied_gradients_to_read(Pager& pager, const std::string& function);
/// Of one page; nothing if no other pipeline stage has it.
void add_tied_gradients_to_read(
    Pager& pager,
    Page& page,
    const std::string& function);

/// @return the parameters of which a pipeline stage has other values than
///   another one, "'embedding.weight'"; empty: there are none. Reads all values
///   on the host. Collective over the pipeline stages; blocks.
std::string find_other_copies(Pager& pager);

} // namespace tessera::sharding
