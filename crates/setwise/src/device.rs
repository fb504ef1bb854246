//! Devices: the CPU and CUDA GPUs, with the precision of their products.

#[cfg(feature = "cuda")]
use std::sync::Arc;

use setwise_engine::Cpu;

use crate::Result;

#[cfg(feature = "cuda")]
pub use setwise_engine::cuda::Precision;

/// The device on which a model is trained or predicts.
#[derive(Clone, Debug, Default)]
pub enum Device {
    /// The CPU threads of the current rayon pool, in f32.
    #[default]
    Cpu,
    /// The same threads with matrix products on AMX. Each product is three products of bf16 parts (bf16x3), with 16
    /// bits of mantissa instead of 24.
    CpuAmx,
    /// A GPU.
    #[cfg(feature = "cuda")]
    Cuda {
        /// The GPU.
        device: Arc<setwise_engine::cuda::Device>,
        /// The precision of its matrix products.
        precision: Precision,
    },
}

impl Device {
    /// Finds a device by name: `cpu`, `cuda` or `cuda:1`.
    ///
    /// `precision` is that of matrix products. A CPU has `f32` (the default) and `bf16x3`, a GPU `tf32` (the default),
    /// `f32` and `bf16`.
    pub fn find(name: &str, precision: Option<&str>) -> Result<Self> {
        if name == "cpu" {
            return match precision {
                None | Some("f32") => Ok(Device::Cpu),
                Some("bf16x3") if Cpu::<f32>::has_amx() => Ok(Device::CpuAmx),
                Some("bf16x3") => Err(setwise_engine::Error::NoAmx.into()),
                Some(other) if ["tf32", "bf16"].contains(&other) => {
                    Err(crate::Error::Device(format!("precision {other} is for GPUs; a CPU has f32 and bf16x3")))
                }
                Some(other) => Err(crate::Error::Device(format!(
                    "there is no precision {other:?}; a CPU has f32 and bf16x3, a GPU f32, tf32 and bf16"
                ))),
            };
        }
        let ordinal = match name.strip_prefix("cuda") {
            Some("") => Some(0),
            Some(rest) => rest.strip_prefix(':').and_then(|n| n.parse::<usize>().ok()),
            None => None,
        };
        let Some(ordinal) = ordinal else {
            return Err(crate::Error::Device(format!("there is no device {name:?}; there are cpu, cuda and cuda:N")));
        };
        Self::cuda(ordinal, precision.unwrap_or("tf32"))
    }

    #[cfg(feature = "cuda")]
    fn cuda(ordinal: usize, precision: &str) -> Result<Self> {
        let precision = match precision {
            "f32" => Precision::F32,
            "tf32" => Precision::Tf32,
            "bf16" => Precision::Bf16,
            other => {
                return Err(crate::Error::Device(format!(
                    "there is no precision {other:?}; there are f32, tf32, bf16"
                )));
            }
        };
        Ok(Device::Cuda { device: setwise_engine::cuda::Device::open(ordinal)?, precision })
    }

    #[cfg(not(feature = "cuda"))]
    fn cuda(_: usize, _: &str) -> Result<Self> {
        Err(crate::Error::Device("this setwise was built without CUDA; build it with --features cuda".to_owned()))
    }
}
