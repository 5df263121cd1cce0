// SPDX-License-Identifier: Apache-2.0
#pragma once
// `OperatorObserver` is called for every operator that a thread executes, and
// that autograd executes for it.

#include <ATen/record_function.h>

namespace tessera::runtime {

/// Sees the operators (scope FUNCTION) and the nodes of autograd (scope
/// BACKWARD_FUNCTION) of the thread that made it, from its construction to its
/// end. Without one, operators run as if there were none. Make and destroy it
/// outside of operators, all of a process on one thread.
class OperatorObserver {
 public:
  virtual ~OperatorObserver();
  OperatorObserver(const OperatorObserver&) = delete;
  OperatorObserver& operator=(const OperatorObserver&) = delete;

  /// Called before and after, on the operator's thread; in between, for the
  /// operators that this one calls. `call` has its inputs only before. In a
  /// backward of a device, other threads may call at the same time: autograd
  /// executes the device's nodes on a thread of its own, and those without a
  /// gradient on the thread that called backward().
  virtual void on_begin(const at::RecordFunction& call) = 0;
  virtual void on_end(const at::RecordFunction& call) = 0;

 protected:
  OperatorObserver();
};

} // namespace tessera::runtime
