// SPDX-License-Identifier: Apache-2.0
#pragma once
// `OtherNames` are further names of parameters, those that a checkpoint has for
// them. Patterns in options match them, too.

#include <map>
#include <string>
#include <vector>

namespace tessera {

/// By the name in the module.
using OtherNames = std::map<std::string, std::vector<std::string>>;

namespace runtime {

/// Returns `names`, followed by the others of each.
std::vector<std::string> with_other_names(
    const std::vector<std::string>& names,
    const OtherNames& others);

/// Returns the names by which the other names of parameters call modules:
/// "model.layers.0" for "blocks.0", if all parameters in it have one that
/// begins so, and for a module whose parameters are its own, what is before
/// their last dot. Of nested modules the outermost has a name.
/// @param modules paths of all modules, those around a module before it; the
///   root's has none.
OtherNames other_module_names(
    const std::vector<std::string>& modules,
    const OtherNames& parameters);

} // namespace runtime

} // namespace tessera
