// SPDX-License-Identifier: Apache-2.0
#pragma once
// `host_identity()` tells which processes can see each other's memory and ends.

#include <string>

namespace tessera::runtime {

/// Equal for processes of the same user on the same boot of the same machine in
/// the same process id namespace: they can read each other's memory and see
/// each other in /proc. Begins with the name of the host and a space.
std::string host_identity();

} // namespace tessera::runtime
