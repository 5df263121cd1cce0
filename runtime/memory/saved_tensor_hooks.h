// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sends every tensor that autograd saves through an ActivationSink, in models
// that know nothing of it.
//
// [Note: saved tensors] LibTorch asks its autograd engine for hooks whenever an
// operator saves a tensor. The engine can be replaced: ours hands everything to
// the one that was there before and answers this one question itself. That is
// process-wide, which is why this file is. What the engine before answers (a
// user's own default hooks) comes first. With hooks LibTorch no longer checks
// that a saved tensor was not changed in place; ours do, with the same error.

#include "tessera/runtime/memory/activation_sink.h"

#include <memory>

namespace tessera {

/// While it lives, tensors that autograd saves in any thread go to `sink`. Of
/// several scopes the one that began last takes all. Without one an operator
/// pays a virtual call and an atomic load for each tensor it saves. Begin and
/// end it outside of forward and backward; graphs may outlive it. Thread-safe.
class SavedTensorScope {
 public:
  explicit SavedTensorScope(std::shared_ptr<ActivationSink> sink);
  ~SavedTensorScope();
  SavedTensorScope(const SavedTensorScope&) = delete;
  SavedTensorScope& operator=(const SavedTensorScope&) = delete;

 private:
  std::shared_ptr<ActivationSink> sink_;
};

/// Whether any SavedTensorScope lives.
bool saved_tensors_have_sink();

/// While it lives, what this thread saves is to leave for the host whatever
/// the sink's own policy (or no longer, with `false`). Without a sink it has no
/// effect.
class SaveToHostScope {
 public:
  explicit SaveToHostScope(bool to_host);
  ~SaveToHostScope();
  SaveToHostScope(const SaveToHostScope&) = delete;
  SaveToHostScope& operator=(const SaveToHostScope&) = delete;

 private:
  bool before_;
};

} // namespace tessera
