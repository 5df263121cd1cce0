// SPDX-License-Identifier: Apache-2.0
#pragma once
// `EngineReads` marks values that the engine reads for itself.

namespace tessera::runtime {

/// While it lives, values that this thread reads and a dry run does not have
/// are zero as any others, but no assumption about the program that is planned
/// (DryRun::assumptions()): norms of gradients, checks. Nothing outside of dry
/// runs. May be nested.
class EngineReads {
 public:
  EngineReads();
  ~EngineReads();
  EngineReads(const EngineReads&) = delete;
  EngineReads& operator=(const EngineReads&) = delete;
};

} // namespace tessera::runtime
