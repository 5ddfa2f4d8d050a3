# Device code for GPUs that the libraries aren't compiled for: the target sherd_architectures, which nothing needs but
# CI. Of each .cu file only the device pass runs, once for each architecture that this nvcc knows; a warning there is an
# error as elsewhere (SHERD_WERROR). tests/cuda_plans/resources.py looks at the stacks.
set(SHERD_CHECKED_ARCHITECTURES "80;90;100;120" CACHE STRING
  "GPU architectures whose device code sherd_architectures compiles")

execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-code OUTPUT_VARIABLE known_code)
set(gpu_code)
foreach(architecture ${SHERD_CHECKED_ARCHITECTURES})
  if(architecture IN_LIST CMAKE_CUDA_ARCHITECTURES)
    continue()  # the libraries have it
  elseif(known_code MATCHES "sm_${architecture}\n")
    list(APPEND gpu_code --generate-code=arch=compute_${architecture},code=sm_${architecture})
  else()
    message(STATUS "this nvcc doesn't know sm_${architecture}: its device code isn't compiled")
  endif()
endforeach()

set(SHERD_FATBINS)
if(gpu_code)
  set(device_options -O3 -std=c++20 ${SHERD_DEVICE_OPTIONS})
  if(SHERD_WERROR)
    list(APPEND device_options -Werror=all-warnings)
  endif()
  file(GLOB_RECURSE kernel_files RELATIVE ${CMAKE_SOURCE_DIR} CONFIGURE_DEPENDS
    ${CMAKE_SOURCE_DIR}/core/*.cu ${CMAKE_SOURCE_DIR}/kernels/*.cu ${CMAKE_SOURCE_DIR}/sharding/*.cu
    ${CMAKE_SOURCE_DIR}/optim/*.cu)
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/architectures)
  foreach(file ${kernel_files})
    get_filename_component(stem ${file} NAME_WE)
    set(fatbin ${CMAKE_BINARY_DIR}/architectures/${stem}.fatbin)
    add_custom_command(OUTPUT ${fatbin}
      COMMAND ${CMAKE_CUDA_COMPILER} -fatbin ${gpu_code} ${device_options} -I${CMAKE_SOURCE_DIR}
        -MD -MF ${fatbin}.d -o ${fatbin} ${CMAKE_SOURCE_DIR}/${file}
      DEPENDS ${file} DEPFILE ${fatbin}.d VERBATIM)
    list(APPEND SHERD_FATBINS ${fatbin})
  endforeach()
endif()
add_custom_target(sherd_architectures DEPENDS ${SHERD_FATBINS})
