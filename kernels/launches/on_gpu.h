/// Where the fronts part from the CPU.
#pragma once

#include "kernels/cuda/forms.h"
#include "kernels/launches/launches.h"
#include "kernels/launches/operands.h"

namespace sherd::kernels {

/// On a CUDA stream: `form` of the arguments; on one that keeps a ledger, a note of what that `launches`.
template <class... Parameters, class... Arguments>
void on_gpu(Stream& stream, void (*form)(Stream&, Parameters...),
            Launches (*launches)(Parameters...), const Arguments&... arguments) {
  if (LedgerStream* ledger = ledger_stream(stream)) return ledger->add(launches(arguments...));
  const CallWithOperands call(arguments...);
  form(stream, arguments...);
}

}  // namespace sherd::kernels
