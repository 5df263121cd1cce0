// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Isa` names the instruction sets of the CPU kernels; best_isa() selects one
// for this machine.

namespace tessera::runtime {

/// Instruction sets, in ascending order of capability.
enum class Isa { kPortable, kAvx2, kAvx512 };

/// Whether this processor and this build support it.
bool isa_available(Isa isa);

/// The most capable available instruction set.
Isa best_isa();

/// @throws tessera::Error if `isa` is not available.
void check_isa(Isa isa);

} // namespace tessera::runtime
