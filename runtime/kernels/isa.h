// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which instruction sets the CPU kernels may use here.

namespace tessera {

/// Instruction sets, the better the later.
enum class Isa { kPortable, kAvx2, kAvx512 };

/// Whether this processor, and this build, have it.
bool isa_available(Isa isa);

/// The best one that is available.
Isa best_isa();

/// @throws tessera::Error if `isa` is not available.
void check_isa(Isa isa);

} // namespace tessera
