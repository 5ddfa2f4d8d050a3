/// Dispatches kernels on a GPU stream instead of the CPU.
#pragma once

#include "kernels/cuda/forms.h"
#include "kernels/launches/launches.h"
#include "kernels/launches/operands.h"

namespace sherd::kernels {

/// On a CUDA stream: calls `form` with the arguments. On a stream that keeps a ledger: records what
/// `launches` returns.
template <class... Parameters, class... Arguments>
void on_gpu(Stream& stream, void (*form)(Stream&, Parameters...),
            Launches (*launches)(Parameters...), const Arguments&... arguments) {
  if (LedgerStream* ledger = ledger_stream(stream)) return ledger->add(launches(arguments...));
  const CallWithOperands call(arguments...);
  form(stream, arguments...);
}

}  // namespace sherd::kernels
